/* What the charts share. */

/** A table behind a chart: `show` says how it is made, and it is made while it is open. */
interface Behind {
  element: HTMLElement;
  show(make: () => HTMLElement): void;
}

/** The chart library of vendor/, which stands in the page before our own script. */
declare const uPlot: typeof import("./vendor/uPlot");

interface Segment {
  /** `weights`, `cache`, `state`, `activations`, `overhead`, `free`, `plain` or `without`: its colour and pattern. */
  kind: string;
  bytes: number;
}

interface BarRow {
  name: string | Node;
  segments: Segment[];
  /** What stands at the right; the sum of the segments, if nothing is given. */
  value?: string;
  verdict?: Verdict;
  note?: string;
  /** Why there is no bar. */
  refused?: string;
  chosen?: boolean;
}

/** A model in the chart of lengths. */
interface CurveLine {
  model: Model;
  /** Bytes at each length of the grid; null past its end. */
  values: (number | null)[];
  bytes(length: number): number | null;
  /** The last length that is drawn: the model's own, or the chosen one if that is longer. */
  end: number;
  /** The most tokens that fit; 0 if none do. */
  fits: number;
  /** Only known at some points. */
  sampled: boolean;
}

interface Curves {
  lengths: number[];
  lines: CurveLine[];
  /** What a GPU has, or has left for the cache of the chosen model. */
  room: (number | null)[];
  refused: { model: Model; refused: string }[];
}
