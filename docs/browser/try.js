// Runs kvplan in the browser: Pyodide and the wheels lie beside this file (scripts/build_site.py).
const form = document.getElementById("kvplan-try");
const answer = document.getElementById("kvplan-answer");
const here = new URL(".", import.meta.url).href;

// What a line on the command line does, with the config as its standard input. The answer is what the command prints.
const RUN = `
import contextlib, io, shlex, sys

def answer(config, options):
    from hwcalc.cli import main

    config = config.strip()
    pasted = config.startswith("{")
    out, said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    sys.stdin = io.TextIOWrapper(io.BytesIO(config.encode() if pasted else b""), encoding="utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            words = shlex.split(options)
        except ValueError as error:
            return f"The options cannot be read: {error}."
        try:
            main(["-" if pasted else config, *words, "--offline"])
        except SystemExit:
            pass
    texts = []
    for stream in (out, said):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return "\\n".join(text for text in texts if text)
`;

let started;

async function start() {
  answer.textContent = "Starting Python ...";
  const { loadPyodide } = await import(`${here}pyodide/pyodide.mjs`);
  const python = await loadPyodide({ indexURL: `${here}pyodide/`, env: { COLUMNS: "90", HF_HUB_OFFLINE: "1", HOME: "/home/pyodide" } });
  answer.textContent = "Loading kvplan ...";
  const wheels = await (await fetch(`${here}wheels.json`)).json();
  for (const name of wheels) {
    python.unpackArchive(await (await fetch(`${here}${name}`)).arrayBuffer(), "wheel");
  }
  python.runPython(RUN);
  return python.globals.get("answer");
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    started ??= start();
    const ask = await started;
    answer.textContent = "Planning ...";
    // Let the browser draw the words before Python takes the thread.
    await new Promise((resolve) => setTimeout(resolve, 20));
    answer.textContent = ask(
      document.getElementById("kvplan-config").value,
      document.getElementById("kvplan-options").value,
    );
  } catch (error) {
    started = undefined;
    answer.textContent = `kvplan could not run here: ${error.message}`;
  }
  answer.dataset.done = "true";
});
