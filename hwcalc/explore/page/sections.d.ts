/* What the charts share. */

/** A table behind a chart: `show` says how it is made, and it is made while it is open. */
interface Behind {
  element: HTMLElement;
  show(make: () => HTMLElement): void;
}

interface Segment {
  /** `weights`, `cache`, `state`, `activations`, `overhead`, `free`, `plain` or `without`: its colour and pattern. */
  kind: string;
  bytes: number;
  /** What the pointer shows; the kind and the size, if nothing is given. */
  title?: string;
}

interface BarRow {
  name: string | Node;
  segments: Segment[];
  /** What stands at the right; the sum of the segments, if nothing is given. */
  value?: string;
  /** Where a GPU is full, if that differs from row to row. */
  limit?: number;
  badge?: HTMLElement;
  note?: string;
  /** Why there is no bar. */
  refused?: string;
  chosen?: boolean;
}

/** A model in the chart of lengths. */
interface CurveLine {
  model: Model;
  /** Of the model, which gives the line its number, colour and dash. */
  place: number;
  /** Bytes at each length of the grid; null past its end. */
  values: (number | null)[];
  bytes(length: number): number | null;
  /** The last length that is drawn: the model's own, or the chosen one if that is longer. */
  end: number;
  /** The most tokens that fit; 0 if none do. */
  fits: number;
}

interface Curves {
  lengths: number[];
  lines: CurveLine[];
  /** What a GPU has, or has left for the cache of the chosen model. */
  room: (number | null)[];
  refused: { model: Model; refused: string }[];
}

/** All that the chart of lengths shows. */
interface Drawing {
  curves: Curves;
  state: State;
  shown: "cache" | "total";
  /** Of both axes: powers, where all lines can be told apart, or linear, where full and empty can be seen. */
  scale: "log" | "linear";
  /** Ids of the models whose lines are not shown. */
  hidden: Set<string>;
}

/** Colours as a canvas takes them. */
interface Palette {
  ink: string;
  grid: string;
  surface: string;
  font: string;
  /** Of the lines, by the place of the model. */
  lines: string[];
}

interface StripLayer {
  number: number;
  kind: string;
  /** Of one sequence. */
  bytes: number;
  terms: TermSizes[];
}
