// What the page uses of uPlot 1.6 (vendor/uPlot.iife.min.js), a script that declares one global class.

declare class uPlot {
  constructor(options: uPlot.Options, data: uPlot.AlignedData, box: HTMLElement);
  /** Of the chart, in CSS pixels. */
  readonly width: number;
  /** Where lines are drawn, in pixels of the canvas. */
  readonly bbox: { readonly left: number; readonly top: number; readonly width: number; readonly height: number };
  readonly ctx: CanvasRenderingContext2D;
  /** The element above the lines, which hears of the pointer. */
  readonly over: HTMLElement;
  readonly cursor: { readonly idx?: number | null };
  valToPos(value: number, scale: "x" | "y", canvasPixels?: boolean): number;
  setData(data: uPlot.AlignedData): void;
  destroy(): void;
}

declare namespace uPlot {
  /** The values on the x axis, then those of each line at them. */
  type AlignedData = [number[], ...(number | null)[][]];
  interface Scale {
    time?: boolean;
    /** 1: linear, 3: logarithmic. */
    distr?: 1 | 3;
    log?: 2 | 10;
    range?: (chart: uPlot, least: number, most: number) => [number, number];
  }
  /** The lines of a grid, or of ticks of such a size. */
  interface Rule {
    stroke: string;
    width: number;
    size?: number;
  }
  interface Axis {
    stroke: string;
    font: string;
    size?: number;
    label?: string;
    grid: Rule;
    ticks: Rule;
    filter?: (chart: uPlot, splits: number[]) => number[];
    splits?: (chart: uPlot, axis: number, least: number, most: number) => number[];
    values?: (chart: uPlot, splits: number[]) => string[];
  }
  interface Series {
    show?: boolean;
    label?: string;
    /** What the legend shows of the value below the pointer. */
    value?: (chart: uPlot, value: number | null) => string;
    stroke?: string;
    fill?: string;
    width?: number;
    dash?: number[];
    points?: { show: boolean };
    spanGaps?: boolean;
    pxAlign?: number;
  }
  interface Options {
    width: number;
    height: number;
    pxAlign?: number;
    /** Top, right, bottom and left. */
    padding?: [number, number, number, number];
    legend?: { show: boolean };
    cursor?: { y?: boolean; drag?: { x: boolean; y: boolean }; points?: { show: boolean }; sync?: { key: string } };
    scales: { x: Scale; y: Scale };
    axes: Axis[];
    series: Series[];
    hooks?: { draw?: ((chart: uPlot) => void)[]; setCursor?: ((chart: uPlot) => void)[] };
  }
}
