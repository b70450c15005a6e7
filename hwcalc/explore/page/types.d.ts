/* What Python hands to the page (hwcalc/explore/payload.py writes it), and what the page makes of it.
   Bytes and counts are whole numbers; sums and products of them stay below 2^53, or are formed with BigInt (forms.js). */

/** `times x min(most, floor((tokens + add) / per))`; see hwcalc/formulas/stairs.py. */
type Stair = [times: Count, per: number, add: number, most: number | null];

/** A number, or a polynomial in the dimensions that are set by hand: pairs of a coefficient and the names that it is multiplied with.
    `{max: [...]}` is the largest of several. */
type Count = number | Polynomial | { max: Polynomial[] };
type Polynomial = [coefficient: number, names: Dimension[]][];
/** In a polynomial `heads` and `kv_heads` are those of a rank: `heads / tp` and `kv_heads / tp`, where `tp` is that of the state (llama.cpp
    splits layers, not heads: 1). By hand, heads is a multiple of kv_heads, and kv_heads of tp, so that both are whole. */
type Dimension = "layers" | "heads" | "kv_heads" | "head_dim";

/** Layers of one kind that grow alike: so many, of so many bytes for each unit. `shape` is a place in `shapes`. */
interface Term {
  shape: number;
  count: Count;
  unit_bytes: Count;
}

/** How the units of layers grow, whatever the bytes of a unit. `kind`, `layers` and `rule` are places in `texts`. */
interface Shape {
  kind: number;
  layers: number;
  /** 1 is left out. */
  unit_tokens?: number;
  stairs: Stair[][];
  rule: number;
}

type Amount =
  | Count
  | { pass: [element_bytes: number, width: Count, chunk: number | null, logits: Count, logit_bytes: number] }
  | { largest: number[] }
  | { fullest: { chunk: number | null; up: boolean; moments: [share: number, sum: number][] } }
  | { gpus: [alike: number, amount: Amount][] }
  | { measured: Measured<Amount> }
  | { early: Early<Amount> };

/** A sum of products, of which a moment has a share; `sum` is a place in `sums`. */
type Products = [bytes: Count, factors: Factor[], stairs: Stair[]][];

/** What a product of a moment is multiplied with: the tokens that are processed at once, the sequences, of the former those of one sequence,
    and 1 if there is only one sequence (hwcalc/engines/moments.py). */
type Factor = "passed" | "sequences" | "each" | "alone";

/** The bytes at the first lengths, from one token on, and the rule that holds from the next length on. */
interface Early<Rule> {
  rule: Rule;
  first: number[];
}

/** A rule, but what was measured where a forward pass is one of the readings. At most `chunk` tokens are processed at once. */
interface Measured<Rule> {
  rule: Rule;
  chunk: number | null;
  readings: [tokens: number, sequences: number, bytes: number][];
}

interface Part {
  name: string;
  /** What lies in the memory of the host counts on no GPU. */
  section: "weights" | "activations" | "overhead" | "host";
  expected: Amount;
  /** An end that is left out equals `expected`. */
  low?: Amount;
  high?: Amount;
}

/** The cache of one model by one engine, in one format and layout. Numbers in `gpus` and `total` are places in `terms`. */
interface Curve {
  gpus: number[][];
  total: number[];
  /** 0, no crests and blocks of one byte are left out. */
  once_bytes?: Count;
  total_once_bytes?: Count;
  block_bytes?: Count;
  null_blocks?: number;
  crests?: number[];
}

/** The rest of the equation, but for its parts. */
interface Rest {
  usable: [low: number, expected: number, high: number];
  total_bytes: number;
  most_sequences: number | null;
  limited_by: string | null;
  /** Whether the engine refuses more sequences than that, in place of a verdict. */
  refuses_more: boolean;
  dp: number;
  least_tokens: number;
  /** Longer sequences are refused. */
  most_tokens: number | null;
  /** Memory of the host that must be there beside the GPUs. If it is shared, what the GPUs need comes out of it too. */
  host: { room: [low: number, expected: number, high: number]; shared: boolean } | null;
  /** Places in `texts`: what sources leave open of the accelerator and the formats. */
  open?: number[];
}

/** A place in a pool by dtype, weights, layout and GPU, in this order. A list of one entry holds for its whole axis, and a number or null
    for all axes that would follow. */
type Grid = number | null | Grid[];

interface Runs {
  /** Formats of the cache, the default first. */
  dtypes: string[];
  /** Formats of the weights, the default first. */
  weights: string[];
  /** Up to how many tokens it starts without these variables of its environment; null where it needs none. */
  beyond?: { tokens: number; variables: string } | null;
  /** Whether replicas share the experts of the model: whole ones are dealt out over all GPUs. */
  deals_experts: boolean;
  /** How many of so many GPUs that share each layer keep the same keys and values. */
  copies?: Record<string, number>;
  /** Of `texts`: why the engine refuses that, or null where it does not. The other grids say nothing where it is refused. */
  refused: Grid;
  /** Of `curves`. */
  curve: Grid;
  /** Of `rests`. */
  rest: Grid;
  /** Of `parts`, a grid for each part of the equation; null where a run has no such part. */
  parts: Grid[];
}

/** Command lines that start an engine: places in `texts`, by dtype, weights and layout, with `{model}`, `{seq}`, `{batch}` and `{cells}` (their product) in them. */
interface Starts {
  commands: Grid;
  /** Of `texts`: by weights, what to say of it. */
  remarks: number[];
}

/** The pieces of the speed: places in `weights` by format of the weights, in `reads` by format of the cache and layout, in `classes` by GPU (null:
    nothing like it was measured), and the ranks of each layout (null: there is no bound). */
interface Speeds {
  weights: (number | null)[];
  reads: Grid;
  ranks: ([tp: number, pp: number, dp: number, experts: number, deviations: number] | null)[];
  classes: (number | null)[];
  layers: number;
  /** Layers, by how many kernels they launch. */
  launched: number;
  hidden_size: number;
}

/** Weights of a format and a use, and the operations of a token with them; `rate` is a place in `rates`. */
interface Share {
  use: string;
  bytes: number;
  parameters: number;
  copies: number;
  active: number;
  flops: number;
  rate: number;
  /** Whether its format is bf16. */
  bf16: boolean;
  /** The keys of `compute_shares` and of `unpack_shares` of a class. */
  multiplied: string;
  packed: string;
}

/** What engines of a class reach of an accelerator's rates: `StepParameters` of hwcalc/profiles/speed.py, and from the expected speed to its ends. */
interface SpeedClass {
  bandwidth_share: number;
  expert_bandwidth: number;
  cache_times: number;
  expert_power: number;
  compute_shares: Record<string, number>;
  unpack_shares: Record<string, number>;
  integer_products: number;
  scale_instructions: number;
  superblock_share: number;
  expert_compute: number;
  expert_rows: number;
  attention_share: number;
  vector_attention: boolean;
  step_us: number;
  sequence_us: number;
  layer_us: number;
  expert_layer_us: number;
  exchange_us: number;
  peer_us: number;
  link_share: number;
  stage_us: number;
  /** The place in `rates` of that at which matrices are multiplied, whatever the format of the weights; else it is that of the weights. */
  rate: number | null;
  /** The same of matrices in bf16, where they are multiplied more slowly. */
  bf16_rate: number | null;
  range: [low: number, high: number];
}

/** Tokens a second of all sequences: the bound and what it follows from, and the expected number with its ends where engines like it were measured. */
interface Speed {
  tokens: number;
  by: string;
  expected: { tokens: number; low: number; high: number } | null;
}

/** What a step reads of the cache of one sequence, and computes with it: `each` for at most `most` positions. */
interface Reads {
  cache: [each: number, most: number | null, stairs: [times: number, per: number, add: number, most: number | null][]][];
  attention: Reads["cache"];
  rate: number;
}

/** An engine that takes the model nowhere. */
interface Refused {
  /** Of `texts`, with one dtype and one weights: why. */
  refused: Grid;
}

interface Model {
  id: string;
  /** The word that names it on a command line, quoted for a shell: `-` if it came from standard input or from Python, null for the bare equation. */
  argument: string | null;
  /** Options that every command line of it has, quoted: `["--assume", "gqa"]`. */
  words: string[];
  max_seq: number | null;
  /** Its layers by kind, those without a cache too: places in `texts`, such as "no cache" and "1,3-5". */
  layers: [kind: number, layers: number][];
  parameters: number | null;
  /** How many GPUs may share each layer so that each has whole heads. */
  shares: number[];
  /** Warnings that hold for every plan of it. */
  warnings: string[];
  engines: Record<string, Runs | Refused>;
  /** By engine what starts it; null where there is nothing to type. */
  starts: Record<string, Starts | null>;
  /** By engine what the speed of a decode step follows from; null where that is not known. */
  speeds: Record<string, Speeds | null>;
  hand: Hand | string | null;
  variants: Variant[];
  saved: Saved | null;
  policies: PolicyRows | null;
  strategies: StrategyRows | null;
}

interface Engine {
  name: string;
  label: string;
  version: string;
  definition: string;
  /** Options that every state of the page has, such as n_gpu_layers=all. */
  options: Record<string, string>;
  /** Whether several GPUs share the layers (pp = count) rather than each layer and the sequences (tp, dp). */
  splits_layers: boolean;
}

interface Gpu {
  id: string;
  name: string;
  memory: string;
  /** GPUs of one machine. */
  node: number;
  /** Other spellings of the id. */
  aliases: string[];
  /** Bytes a second of its memory and what was seen to be read of them, operations a second by place in `rates` and with 32-bit numbers, and bytes
      a second that it sends to others; null where its profile does not say them. */
  bandwidth: number | null;
  seen: number | null;
  rates: (number | null)[];
  vectors: number | null;
  link: number | null;
  /** By the number of them: dollars an hour, and what that is the price of, with its day. */
  prices: Record<string, [usd: number, of: string]>;
}

/** GPUs in all, how many of them share each layer, and how many runs of layers follow each other; the rest are replicas. */
interface Layout {
  count: number;
  tp: number;
  pp: number;
}

/** Dimensions set by hand: as a {@link Runs} whose curves and parts have polynomials, in every format of the cache and with the weights as
    published. `rule` says which values go together. A dimension whose `least` equals its `most` stays as it is. */
interface Hand {
  dimensions: Record<Dimension, { value: number; least: number; most: number; step: number }>;
  /** What dimensions must be by hand: heads a multiple of kv_heads, and kv_heads of tp. Others are refused with this sentence. */
  rule: string;
  engines: Record<string, Runs | Refused>;
}

/** The same model with another kind of attention. */
interface Variant {
  name: string;
  note: string;
  /** Of `curves`, by engine, in its default format on one GPU of each kind (the only axis of the grid); below zero it is refused. */
  engines: Record<string, Grid>;
}

/** A whole number; as its digits where JavaScript would round it. `Number()` and `BigInt()` read both. */
type Whole = number | string;

/** Operations at some lengths, exact: of a new token, and of a text from its first token on; with the cache and without. */
interface Saved {
  lengths: number[];
  with_cache: Whole[];
  without_cache: Whole[];
  total_with_cache: Whole[];
  total_without_cache: Whole[];
  /** Whether those with the weights count; else attention alone. */
  weights: boolean;
  source: string;
}

/** Answers under cache policies, exact at these lengths and numbers of sequences: on one GPU of any kind, in the default formats of cache
    and weights, with the model's own dimensions. A state elsewhere is refused with a sentence that says so. */
interface PolicyRows {
  lengths: number[];
  batches: number[];
  rows: PolicyRow[];
}

interface PolicyRow {
  /** As `--policy` takes it: `State.policy`. */
  policy: string;
  title: string;
  /** What it does for memory, in words. */
  memory: string;
  /** A number is a place in `texts`: why the engine has no such policy. */
  engines: Record<string, PolicyAnswers | number>;
}

/** One value for all points, or one for each: that of `lengths[i]` and `batches[j]` has the place `i * batches.length + j`. */
type Column<T> = T | T[];

/** What a policy makes of the cache and of the activations. All the rest is that of the engine's form on the GPU. */
interface PolicyAnswers {
  /** A place in `texts` where a point is refused; its other values are null. */
  refused: Column<number | null>;
  total_bytes: Column<number | null>;
  per_gpu_bytes: Column<number | null>;
  low: Column<number | null>;
  expected: Column<number | null>;
  high: Column<number | null>;
  /** GPUs on which there is no answer: places in `texts`. */
  gpus?: Record<string, number>;
}

/** Ways of allocating the cache of one sequence, by the formulas in the model's own format: `bytes` on the GPU at the full length, `held`
    with half of it, `peak` within a step (at least, where `peak_is_bound`), `host` in the memory of the host. */
interface StrategyRows {
  lengths: number[];
  rows: { name: string; title: string; note: string; used_by: string; peak_is_bound: boolean; bytes: number[]; held: number[]; peak: number[]; host: number[] }[];
}

interface Payload {
  schema: number;
  kvplan: string;
  /** Whether `kvplan explore --serve` is behind the page, so that any model can be asked for. */
  live: boolean;
  /** What is chosen when the page opens; the address fragment comes before it. */
  first: Partial<State>;
  /** GPUs with their numbers, where the user named nodes. */
  nodes: { gpu: string; count: number }[];
  lengths: { least: number; most: number };
  batches: number[];
  layouts: Layout[];
  /** The words of the command line, what they say of the estimates, and whether it fits by the expected values. */
  verdicts: Record<Verdict, { words: string; meaning: string; fits: boolean }>;
  gpus: Gpu[];
  engines: Engine[];
  /** Other spellings of formats. */
  formats: Record<string, string>;
  /** Tokens of one step choose experts as if so few were drawn at random: their number to this power. */
  experts_power: number;
  /** The share of the time that is paid in which tokens are computed. */
  use: number;
  /** The largest share of a bound that was measured. */
  most_reached: number;
  models: Model[];
  texts: string[];
  shapes: Shape[];
  terms: Term[];
  curves: Curve[];
  parts: Part[];
  rests: Rest[];
  sums: Products[];
  shares: Share[];
  /** Of `shares`. */
  weights: number[][];
  classes: SpeedClass[];
  reads: Reads[];
  rates: string[][];
}

/** What is chosen. Everything is in the address fragment. */
interface State {
  model: string;
  engine: string;
  gpu: string;
  count: number;
  tp: number;
  /** Runs of layers on GPUs that follow each other. */
  pp: number;
  seq: number;
  batch: number;
  dtype: string;
  weights: string;
  policy: string | null;
  /** Dimensions set by hand; null goes by the model. */
  hand: Record<Dimension, number> | null;
}

/** What an address asks for, whether there is such a thing or not. */
type Wanted = Partial<Record<keyof State, unknown>>;

/** A bigint only where a number would not be exact, beyond 2^53: `Number(bytes)` before arithmetic for drawing. */
type Bytes = number | bigint;
type End = "low" | "expected" | "high";
type Verdict = "fits" | "probably" | "probably_not" | "no";

/** The answer, with the names of a plan's JSON. */
interface Answer {
  cache: { total_bytes: Bytes; per_gpu_bytes: Bytes };
  per_gpu: { weights: number; cache: Bytes; activations: number; overhead: number; total: Bytes };
  fit: {
    usable_bytes: number;
    needed_bytes: Bytes;
    needed_low_bytes: Bytes;
    needed_high_bytes: Bytes;
    headroom_bytes: Bytes;
    verdict: Verdict;
    /** No limit is known under a policy: then `sampled` has the largest of the lengths and numbers of sequences that the page knows. */
    max_seq: number | null;
    expected_max_seq: number | null;
    max_batch: number | null;
    expected_max_batch: number | null;
  };
  sampled?: { max_seq: number; expected_max_seq: number; max_batch: number; expected_max_batch: number };
}

/** Or why there is none. */
interface NoAnswer {
  refused: string;
}

/* The form of a state, taken out of the pools (data.js), for the evaluator (forms.js). Dimensions set by hand are put in. */

/** Without `most` a stair never ends: it is infinite here. */
type PlainStair = [times: number, per: number, add: number, most: number];

interface PlainTerm {
  kind: string;
  layers: string;
  rule: string;
  count: number;
  unit_bytes: number;
  unit_tokens: number;
  stairs: PlainStair[][];
}

type PlainAmount =
  | number
  | { pass: [element_bytes: number, width: number, chunk: number | null, logits: number, logit_bytes: number] }
  | { largest: PlainTerm[] }
  | { fullest: Fullest }
  | { gpus: PlainAmount[] }
  | { measured: Measured<PlainAmount> }
  | { early: Early<PlainAmount> };

interface Fullest {
  chunk: number | null;
  up: boolean;
  moments: [share: number, products: [bytes: number, factors: Factor[], stairs: PlainStair[]][]][];
}

interface PlainPart extends Record<End, PlainAmount> {
  name: string;
  section: Part["section"];
}

interface Form {
  gpus: PlainTerm[][];
  total: PlainTerm[];
  once_bytes: number;
  total_once_bytes: number;
  block_bytes: number;
  null_blocks: number;
  crests: number[];
  parts: PlainPart[];
  usable: Record<End, number>;
  /** What programs see of the GPU. */
  total_bytes: number;
  most_sequences: number | null;
  limited_by: string | null;
  refuses_more: boolean;
  dp: number;
  least_tokens: number;
  most_tokens: number | null;
  host: { room: Record<End, number>; shared: boolean } | null;
  /** The model's own length. */
  max_seq: number | null;
  /** What sources leave open of the accelerator and the formats. */
  open: string[];
}

/** The bytes of a state without the solvers, on the fullest GPU but for `total_cache`. */
interface Sizes {
  cache: Bytes;
  /** What of the cache does not grow with length. */
  state: Bytes;
  total_cache: Bytes;
  weights: number;
  activations: number;
  overhead: number;
  total: Bytes;
  usable: number;
  verdict: Verdict;
}

/** One sequence in all the layers of a term. */
interface TermSizes {
  term: PlainTerm;
  count: number;
  units: number;
  bytes: number;
}

/* What the sections of the page share (main.js makes it). A section is made once, by `xSection(page)`; main.js puts its element into the
   page and calls `update` for each new state, at most once a frame. A section that throws shows its error and leaves the others alone. */

interface Page {
  payload: Payload;
  /** The payload whose pools have what a model's places mean: another one for a model that came later. */
  pools(model: Model): Payload;
  /** Take the models of another payload in, which has the same axes. */
  add(other: Payload): void;
  /** What is chosen now. */
  state(): State;
  /** Choose something else. While a slider is held, `settled` is false: the address follows later and the history not at all. */
  set(change: Partial<State>, settled?: boolean): void;
  answer(state: State): Answer | NoAnswer;
  sizes(state: State): Sizes | NoAnswer;
  /** Of all GPUs, in the order of the curve. */
  terms(state: State): TermSizes[] | NoAnswer;
  /** For a loop over many lengths: `sizesAt(form, tokens, sequences)` of solve.js. It does not depend on `seq` and `batch`. */
  form(state: State): Form | NoAnswer;
  /** The nearest state that the page has: what is not known becomes its default, what is too large the largest. */
  valid(wanted: Wanted): State;
  /** The state with something else in it. How many GPUs share each layer follows, unless somebody chose it. */
  changed(state: State, change: Partial<State>): State;
  /** Choose what an address asks for. */
  take(wanted: Wanted): void;
  /** What the address asked for and the page does not have, in sentences, until something else is chosen. */
  lacking(): string[];
  /** The command line of a state. */
  command(state: State): string;
  /** What starts the engine of a state, and a remark on it; null where there is nothing to type. */
  start(state: State): { command: string; remark: string } | null;
  /** The tokens a second of all sequences; null where no bound is known. */
  speed(state: State): Speed | null;
  /** How the page chose what it opened with, until something else is chosen; empty where somebody chose it. */
  opening(): string;
}

interface Section {
  element: HTMLElement;
  update(state: State, answer: Answer | NoAnswer): void;
}

/** For tests, and for whoever has a console. */
declare var kvplan: { speed(state?: Partial<State>): Speed | null; payload: Payload; state(): State; set(change: Partial<State>): void; answer(state?: Partial<State>): Answer | NoAnswer; command(state?: Partial<State>): string; settled(): boolean };

/** A replay over time (`hwcalc/explore/timeline.py`): in parts that end at `times`, counted in `unit`. */
interface Timeline {
  caption: string;
  unit: string;
  times: number[];
  /** Shares of the pool: the mean of all servers, and the fullest. */
  use: number[];
  use_max: number[];
  running: number[];
  waiting: number[];
}

interface TimeChart {
  id: string;
  title: string;
  unit: string;
  /** The least height of the axis. */
  least: number;
  lines: { label: string; values: number[]; dash?: number[]; area?: boolean }[];
}
