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
