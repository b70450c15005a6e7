// What the words of the page mean, in a bubble on hover and focus.

import { hint } from "./hints.js";
import { html } from "./tables.js";

/** @type {Record<string, string>} */
const TERMS = {
  weights: "The parameters of the model in their format, as far as they lie on the fullest GPU.",
  cache: "Keys and values, or latents, of all tokens of all sequences that are alive at once.",
  "cache of tokens": "Keys and values, or latents, of all tokens of all sequences that are alive at once.",
  "state, the same at every length": "What recurrent layers and full windows keep: it does not grow with the number of tokens.",
  activations: "What a forward pass needs while it runs: the largest moment counts.",
  overhead: "What the driver, the libraries and the engine take beside the model.",
  "may be used": "What the engine may use of the memory that programs see: the rest is left free on purpose.",
  "estimate of the whole": "Weights, activations and overhead are partly estimates: the sum lies between these ends.",
  "the fullest GPU": "Of several GPUs the one that needs most. If it has room, all have.",
  model: "A model of this page. Its layers and dimensions come from its config.",
  weights_format: "The format in which the weights are stored; as published is the format of the model's own files.",
  seq: "Prompt and generated tokens of one sequence together.",
  batch: "Sequences whose cache is in memory at the same time: users who are being answered.",
  dtype: "The number format of the cache: bf16 has 2 bytes an element, fp8 has 1, q8_0 has 8.5 bits with its scales.",
  policy: "A rule by which less of the cache is kept, or less of it is read.",
  engine: "The program that serves the model. The reference stores exactly what the formulas say, without blocks or reserves.",
  gpu: "The accelerator. Its size is that of the data sheet; programs see a little less.",
  count: "All GPUs. How many share a layer (tp), follow each other (pp) or are replicas (dp) is below.",
  tp: "Tensor parallel: so many GPUs share each layer, its weights and its heads.",
  pp: "Pipeline parallel: the layers are cut into so many runs, each on GPUs of its own. Without it the other GPUs are replicas.",
  hand: "Other dimensions for the same model, as --layers, --heads, --kv-heads and --head-dim set them.",
  MHA: "Multi-head attention: each query head has a key and a value of its own.",
  GQA: "Grouped-query attention: several query heads share a key and a value.",
  MQA: "Multi-query attention: all query heads share one key and one value.",
  MLA: "Multi-head latent attention: a small latent in the place of keys and values.",
  price: "Of these GPUs on demand, by a public list of the day that is named. A million tokens cost what they do at the expected speed, if tokens are computed in the named share of the time that is paid.",
  speed: "What the engine is expected to decode on this GPU, and the range in which four of five measurements lie. No engine is faster than the bound, which the bandwidth of the memory or the rate of the units sets.",
};

/**
 * A word with its meaning, or the word alone where there is nothing to say.
 * @param {string} words @param {string} [name]
 */
export function term(words, name = words) {
  const meaning = Object.hasOwn(TERMS, name) ? TERMS[name] : undefined;
  return meaning === undefined ? html("span", {}, words) : hint(html("span", { class: "term" }, words), meaning);
}

/**
 * Gives an element the meaning of a term.
 * @template {HTMLElement} E @param {E} element @param {string} name @returns {E}
 */
export function explained(element, name) {
  const meaning = Object.hasOwn(TERMS, name) ? TERMS[name] : undefined;
  if (meaning !== undefined) hint(element, meaning).classList.add("term");
  return element;
}
