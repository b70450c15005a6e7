/* What the charts share. */

/** A table behind a chart: `show` says how it is made, and it is made while it is open. */
interface Behind {
  element: HTMLElement;
  show(make: () => HTMLElement): void;
}

/** The chart library of vendor/, which stands in the page before our own script. */
declare const uPlot: typeof import("./vendor/uPlot");
