// Draws the charts of a report from the data in the page: linked in time, by mouse and by keyboard.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("run-data").textContent);
  const time = page.timeline;
  const whole = { min: 0, max: Math.max(time.end, 1) };
  const holders = [...document.querySelectorAll("[data-chart]")];
  let shown = { ...whole };
  let charts = [];
  let printing = false;

  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const pad2 = (value) => String(value).padStart(2, "0");
  const clock = (seconds) => {
    const s = Math.round(seconds);
    return `${Math.floor(s / 3600)}:${pad2(Math.floor(s / 60) % 60)}:${pad2(s % 60)}`;
  };
  const integers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const readable = (value) => (Math.abs(value) < 1000 ? digits : integers).format(value);
  const ticks = new Intl.NumberFormat("en", { maximumSignificantDigits: 7 });
  const words = (value, unit) =>
    value == null ? "–" : `${readable(value)}${unit && unit !== "%" ? " " : ""}${unit}`;

  // Numbers travel as whole steps, each the difference to the one before; null is a hole.
  function unpack(counts, step) {
    let sum = 0;
    return counts.map((count) => (count === null ? null : (sum += count) * step));
  }

  function columns(chart) {
    const lines = chart.lines.map((line) => ({
      ...line,
      t: unpack(line.t, time.timeStep),
      v: unpack(line.v, line.step),
    }));
    if (!chart.stacked) {
      return { lines, raw: null, data: uPlot.join(lines.map((line) => [line.t, line.v])) };
    }
    // The topmost sum is drawn first and filled down to zero; each one below covers its part.
    const parts = lines.filter((line) => line.ink === "plain");
    const sums = [];
    parts.forEach((part, i) => {
      sums.push(part.v.map((v, k) => (v === null ? null : v + (i ? sums[i - 1][k] || 0 : 0))));
    });
    const limits = lines.filter((line) => line.ink !== "plain");
    const order = [...parts].reverse();
    return {
      lines: [...order, ...limits],
      raw: [...order.map((line) => line.v), ...limits.map((line) => line.v)],
      data: [parts[0].t, ...sums.reverse(), ...limits.map((line) => line.v)],
    };
  }

  function phaseAt(t) {
    const phase = time.phases.find(([, start, end]) => start <= t && t < end);
    return phase ? ` · ${phase[0]}` : "";
  }

  function timeSeries(chart) {
    const at = chart.counted
      ? (n) => `${chart.counted} ${readable(n)}`
      : (t) => clock(t) + phaseAt(t);
    return { label: "values", value: (u, x) => (x == null ? chart.legend : at(x)) };
  }

  function lineSeries(line, chart, raw) {
    const plain = line.ink === "plain";
    const points = line.ink === "points";
    const ink = () => colour(line.ink === "limit" ? "ink" : `c${line.colour}`);
    const series = {
      label: line.label,
      class: line.ink === "spread" ? "quiet" : undefined,
      stroke: line.ink === "spread" ? "transparent" : line.ink === "fit" ? () => colour("ink") : ink,
      width: widthOfLine(line, chart),
      dash: line.ink === "fit" ? [7, 4] : line.ink === "limit" ? [2, 3] : undefined,
      // A line of few samples (a slow probe) shows each of them.
      points: {
        show: points || (plain && !chart.stacked && line.t.length < 80),
        size: points ? 7 : 4,
        fill: ink,
      },
      value: (u, v, i, k) => {
        const values = raw ? raw[i - 1] : u.data[i];
        return words(k == null ? line.shown : values[k], chart.unit);
      },
    };
    if (points) {
      series.paths = () => null;
    }
    if (chart.stacked && plain) {
      series.fill = ink;
    }
    return series;
  }

  // The first of several lines is drawn beneath the others and wider, so that none can hide it.
  function widthOfLine(line, chart) {
    if (line.ink === "fit") {
      return 2;
    }
    if (chart.stacked && line.ink === "plain") {
      return 0.5;
    }
    return line.ink === "plain" && line.colour === chart.lines[0].colour && chart.lines.length > 1
      ? 2.6
      : 1.4;
  }

  // Lines have clocks of their own: the nearest sample answers, not the one at the same position.
  function nearest(u, series, k, x) {
    const values = u.data[series];
    if (series === 0 || values[k] != null) {
      return k;
    }
    let low = k;
    let high = k;
    while (low >= 0 && values[low] == null) low--;
    while (high < values.length && values[high] == null) high++;
    if (low < 0 || high >= values.length) {
      return low < 0 ? (high < values.length ? high : k) : low;
    }
    return x - u.data[0][low] <= u.data[0][high] - x ? low : high;
  }

  function yRange(chart) {
    return (u, min, max) => {
      if (min == null || max == null) {
        return [0, 1];
      }
      const low = chart.fromZero ? Math.min(0, min) : min;
      // A flat line gets an axis of whole numbers, not of rounding errors.
      const span = Math.max(max - low, chart.minSpan) || 1;
      const spare = (span - (max - low)) / 2;
      if (chart.fromZero) {
        return [low < 0 ? low - 0.06 * span : 0, low + 1.08 * span];
      }
      const bottom = low - spare - 0.06 * span;
      return [min >= 0 ? Math.max(0, bottom) : bottom, max + spare + 0.08 * span];
    };
  }

  function bands(lines) {
    const found = [];
    lines.forEach((line, i) => {
      if (line.ink === "spread" && lines[i + 1] && lines[i + 1].ink === "spread" && !line.used) {
        if (i > 0 && lines[i - 1].ink === "points") {
          lines[i + 1].used = true;
          return; // drawn as bars through its points
        }
        lines[i + 1].used = true;
        found.push({ series: [i + 2, i + 1], fill: fade(colour(`c${line.colour}`), 0.28) });
      }
    });
    return found;
  }

  function fade(hex, alpha) {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
  }

  function drawBehind(u) {
    const { left, top, width, height } = u.bbox;
    const start = clamp(u.valToPos(time.window[0], "x", true), left, left + width);
    const end = clamp(u.valToPos(time.window[1], "x", true), left, left + width);
    u.ctx.fillStyle = colour("window");
    u.ctx.fillRect(start, top, end - start, height);
  }

  const isSpread = (line) => line !== undefined && line.ink === "spread";

  // The interval of each point, from two lines right after the points; a fit has its band instead.
  function drawBars(u, ctx, ratio, lines) {
    lines.forEach((line, i) => {
      if (line.ink !== "points" || !isSpread(lines[i + 1]) || !isSpread(lines[i + 2])) {
        return;
      }
      ctx.strokeStyle = colour(`c${line.colour}`);
      ctx.lineWidth = 1.2 * ratio;
      ctx.setLineDash([]);
      u.data[0].forEach((at, k) => {
        const [low, high] = [u.data[i + 2][k], u.data[i + 3][k]];
        const { min, max } = u.scales.x;
        if (low == null || high == null || at < min || at > max) {
          return;
        }
        const x = u.valToPos(at, "x", true);
        ctx.beginPath();
        ctx.moveTo(x, u.valToPos(low, "y", true));
        ctx.lineTo(x, u.valToPos(high, "y", true));
        ctx.stroke();
      });
    });
  }

  function drawBefore(chart, lines) {
    return (u) => {
      const ctx = u.ctx;
      const ratio = devicePixelRatio;
      ctx.save();
      if (!chart.counted) {
        drawPhases(u, ctx, ratio);
        drawMarks(u, ctx, ratio);
      }
      drawBars(u, ctx, ratio, lines);
      ctx.fillStyle = colour("axis");
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "bottom";
      ctx.fillText(chart.unit, 2 * ratio, u.bbox.top - 5 * ratio);
      ctx.restore();
    };
  }

  function drawPhases(u, ctx, ratio) {
    const { left, top, width } = u.bbox;
    const names = [...new Set(time.phases.map((phase) => phase[0]))];
    for (const [name, from, to] of time.phases) {
      const start = clamp(u.valToPos(from, "x", true), left, left + width);
      const end = clamp(u.valToPos(to, "x", true), left, left + width);
      if (end <= start) {
        continue;
      }
      ctx.fillStyle = colour(`p${names.indexOf(name) % 7}`);
      ctx.fillRect(start, top - 5 * ratio, end - start, 4 * ratio);
    }
  }

  const manyCollections = time.marks.filter(([kind]) => kind === "gc").length > 60;

  function drawMarks(u, ctx, ratio) {
    const tick = (manyCollections ? 3 : 7) * ratio;
    const { left, top, width, height } = u.bbox;
    const labels = [];
    for (const [kind, t, label] of time.marks) {
      const x = Math.round(u.valToPos(t, "x", true));
      if (x < left || x > left + width) {
        continue;
      }
      const quiet = kind === "checkpoint" || kind === "gc";
      ctx.strokeStyle = colour(kind === "gc" ? "c4" : kind === "checkpoint" ? "mark" : "steady");
      ctx.lineWidth = (quiet ? 1 : 1.5) * ratio;
      ctx.setLineDash(kind === "checkpoint" ? [2 * ratio, 3 * ratio] : []);
      ctx.beginPath();
      ctx.moveTo(x, kind === "gc" ? top + height - tick : top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      if (!quiet && label) {
        labels.push([x, label]);
      }
    }
    ctx.setLineDash([]);
    drawLabels(u, ctx, ratio, labels);
  }

  // Each label in the first row where it touches no other: marks of one second stand close.
  function drawLabels(u, ctx, ratio, labels) {
    const end = u.bbox.left + u.bbox.width;
    const gap = 4 * ratio;
    const rows = [];
    ctx.font = `${10 * ratio}px system-ui, sans-serif`;
    ctx.fillStyle = colour("steady");
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    for (const [x, label] of labels) {
      const width = ctx.measureText(label).width;
      const from = x + gap + width > end ? x - gap - width : x + gap;
      const free = (row) => row.every(([a, b]) => from > b + gap || from + width < a - gap);
      let at = rows.findIndex(free);
      if (at < 0) {
        at = rows.push([]) - 1;
      }
      rows[at].push([from, from + width]);
      ctx.fillText(label, from, u.bbox.top + (3 + 12 * at) * ratio);
    }
  }

  const wholeSteps = [...Array(13).keys()]
    .flatMap((n) => [1, 2, 2.5, 5].map((m) => m * 10 ** n))
    .filter(Number.isInteger);

  function options(chart, holder, lines, raw) {
    const axis = {
      stroke: () => colour("axis"),
      grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { stroke: () => colour("grid"), width: 1, size: 4 },
      font: "11px system-ui, sans-serif",
    };
    const counting = lines.every((line) => !measured(line) || line.step % 1 === 0);
    const wide = lines.some((line) => line.v.some((v) => Math.abs(v) >= 1e6));
    const times = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
    return {
      width: widthOf(holder),
      height: holder.closest("figure").classList.contains("wide") ? 280 : 200,
      padding: [20, 26, 0, 0],
      scales: { x: xScale(chart, lines), y: { range: yRange(chart) } },
      series: [timeSeries(chart), ...lines.map((line) => lineSeries(line, chart, raw))],
      bands: bands(lines),
      axes: [
        chart.counted
          ? { ...axis, incrs: wholeSteps, space: 50, size: 28, values: (u, at) => at.map(String) }
          : { ...axis, incrs: [...times, 86400, 172800], space: 70, size: 28,
              values: (u, at) => at.map(clock) },
        { ...axis, size: wide ? 84 : 62, space: 34, ...(counting ? { incrs: wholeSteps } : {}), values: (u, at) => at.map((v) => ticks.format(v)) },
      ],
      legend: { live: true, markers: { width: 0, fill: (u, i) => markerOf(lines[i - 1]) } },
      cursor: {
        y: false,
        dataIdx: nearest,
        points: { size: 6 },
        drag: { x: true, y: false, setScale: Boolean(chart.counted) },
        ...(chart.counted ? {} : linked),
      },
      hooks: {
        drawClear: chart.counted || !time.window ? [] : [drawBehind],
        draw: [drawBefore(chart, lines)],
        setSelect: chart.counted ? [] : [zoomToSelection],
      },
    };
  }

  // What charts over time share; a chart that counts something else has a range of its own.
  const linked = {
    sync: { key: "run", setSeries: false, filters: { pub: (type) => type === "mousemove" } },
    bind: { dblclick: () => () => show(whole) },
  };

  function xScale(chart, lines) {
    if (!chart.counted) {
      return { time: false, min: shown.min, max: shown.max };
    }
    const all = lines.flatMap((line) => line.t);
    const [first, last] = [Math.min(...all), Math.max(...all)];
    // Room at both ends, so that the first and the last point are seen whole.
    const spare = 0.03 * (last - first) || 1;
    const range = (u, min, max) =>
      min <= first && max >= last ? [first - spare, last + spare] : [min, max];
    return { time: false, range };
  }

  function measured(line) {
    return line.ink === "plain" || line.ink === "points";
  }

  function markerOf(line) {
    return colour(measured(line) ? `c${line.colour}` : "ink");
  }

  function widthOf(holder) {
    return printing ? 640 : Math.max(200, Math.floor(holder.getBoundingClientRect().width));
  }

  function zoomToSelection(u) {
    if (u.select.width > 4) {
      const min = u.posToVal(u.select.left, "x");
      const max = u.posToVal(u.select.left + u.select.width, "x");
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      show({ min, max });
    }
  }

  // One range for all charts, held inside the run.
  function show(range) {
    const span = clamp(range.max - range.min, whole.max / 5000, whole.max);
    const min = clamp(range.min, 0, whole.max - span);
    shown = { min, max: min + span };
    charts.forEach((u, i) => counted(i) || u.setScale("x", shown));
    const near = (a, b) => Math.abs(a - b) < 1e-6 * whole.max;
    const same = (r) => near(shown.min, r.min) && near(shown.max, r.max);
    const judged = time.window && { min: time.window[0], max: time.window[1] };
    for (const button of document.querySelectorAll("button[aria-pressed]")) {
      const target = button.dataset.range === "all" ? whole : judged;
      button.setAttribute("aria-pressed", String(same(target)));
    }
    const output = document.querySelector("output.range");
    output.textContent = `${clock(shown.min)} to ${clock(shown.max)}`;
  }

  const counted = (i) => page.charts[holders[i].dataset.chart].counted;

  function zoom(factor, about) {
    const middle = about == null ? (shown.min + shown.max) / 2 : about;
    show({
      min: middle - (middle - shown.min) * factor,
      max: middle + (shown.max - middle) * factor,
    });
  }

  function onKey(u, chart, event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const x = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null;
    if (step) {
      const width = u.bbox.width / devicePixelRatio;
      const left = u.cursor.left >= 0 ? u.cursor.left : width / 2;
      u.setCursor({ left: clamp(left + (step * width) / 60, 0, width), top: 10 });
    } else if (chart.counted) {
      return;
    } else if (event.key === "+" || event.key === "=") {
      zoom(0.5, x);
    } else if (event.key === "-") {
      zoom(2, x);
    } else if (event.key === "Escape" || event.key === "0") {
      show(whole);
    } else {
      return;
    }
    event.preventDefault();
  }

  function build() {
    charts.forEach((u) => u.destroy());
    charts = holders.map((holder) => {
      const chart = page.charts[holder.dataset.chart];
      const { lines, raw, data } = columns(chart);
      holder.classList.toggle("stacked", chart.stacked);
      const u = new uPlot(options(chart, holder, lines, raw), data, holder);
      holder.onkeydown = (event) => onKey(u, chart, event);
      return u;
    });
  }

  function resize() {
    charts.forEach((u, i) => {
      const width = widthOf(holders[i]);
      if (width !== u.width) {
        u.setSize({ width, height: u.height });
      }
    });
  }

  function setPrinting(on) {
    printing = on;
    document.documentElement.toggleAttribute("data-print", on);
    build();
  }

  const ranges = {
    all: () => show(whole),
    window: () => show({ min: time.window[0], max: time.window[1] }),
    in: () => zoom(0.5),
    out: () => zoom(2),
  };

  if (holders.length) {
    build();
    show(whole);
    for (const button of document.querySelectorAll("button[data-range]")) {
      button.addEventListener("click", ranges[button.dataset.range]);
    }
    let due = 0;
    new ResizeObserver(() => {
      cancelAnimationFrame(due);
      due = requestAnimationFrame(() => printing || resize());
    }).observe(document.querySelector("main"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
    addEventListener("beforeprint", () => setPrinting(true));
    addEventListener("afterprint", () => setPrinting(false));
  }
})();
