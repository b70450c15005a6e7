// What is on the screen answers in the next frame; the rest follows when there is time.

const NEAR = "25%";

/**
 * Tells whether an element is on the screen, or near it. Until that is known, it is.
 * @param {HTMLElement[]} elements
 */
function sightOf(elements) {
  /** @type {Set<Element>} */
  const away = new Set();
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) away.delete(target);
        else away.add(target);
      }
    },
    { rootMargin: NEAR },
  );
  for (const element of elements) observer.observe(element);
  return (/** @type {HTMLElement} */ element) => !away.has(element);
}

/** When nothing else is to be done. @param {() => void} work */
function idle(work) {
  if ("requestIdleCallback" in window) requestIdleCallback(work, { timeout: 300 });
  else setTimeout(work, 50);
}

/**
 * Updates sections, those in sight at once. `settled` says whether all are up to date.
 * @param {Section[]} sections
 */
export function updaterOf(sections) {
  const seen = sightOf(sections.map((section) => section.element));
  let turn = 0;
  let waiting = 0;
  const update = (/** @type {State} */ state, /** @type {Answer | NoAnswer} */ answer) => {
    const own = ++turn;
    const later = sections.filter((section) => !seen(section.element));
    for (const section of sections) if (!later.includes(section)) section.update(state, answer);
    waiting = later.length;
    const next = () => {
      if (own !== turn) return;
      later.shift()?.update(state, answer);
      waiting = later.length;
      if (waiting > 0) idle(next);
    };
    if (waiting > 0) idle(next);
  };
  return { update, settled: () => waiting === 0 };
}
