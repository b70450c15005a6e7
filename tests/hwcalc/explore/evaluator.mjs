// Runs functions of the page's modules: reads {payload, calls: [[name, ...arguments]]} and writes a list of results.
// A BigInt is written as a number: Python reads it whole.

import { readFileSync } from "node:fs";

const { payload, calls } = JSON.parse(readFileSync(0, "utf8"));
const modules = await Promise.all(["answer", "command", "data", "forms", "reason", "speed", "state", "strip", "tables"].map((name) => import(`./${name}.js`)));
const page = Object.assign({}, ...modules);
const forms = payload === null ? null : page.formsOf(payload);
const answers = forms === null ? null : page.answersOf(payload, () => payload, forms);
const functions = {
  ...page,
  valid: (wanted) => page.validState(payload, forms, wanted),
  moved: (wanted, change) => page.changedState(payload, forms, page.validState(payload, forms, wanted), change),
  lacking: (fragment) => page.lackingOf(payload, page.wantedBy(fragment), page.validState(payload, forms, page.wantedBy(fragment))),
  beyond: (wanted) => page.beyondWords(payload, page.modelOf(payload, wanted), page.validState(payload, forms, wanted)),
  opened: (fragment) => page.validState(payload, forms, page.wantedBy(fragment)),
  answer: (wanted) => answers.answer(page.validState(payload, forms, wanted)),
  sizes: (wanted) => answers.sizes(page.validState(payload, forms, wanted)),
  speed: (wanted) => page.speedOf(payload, page.validState(payload, forms, wanted)),
  command: (wanted) => page.commandOf(payload, page.validState(payload, forms, wanted)),
};
const results = calls.map(([name, ...given]) => functions[name](...given));
const text = JSON.stringify(results, (_, value) => (typeof value === "bigint" ? `bigint:${value}` : value));
process.stdout.write(text.replaceAll(/"bigint:(-?\d+)"/g, "$1"));
