// The page of a report. Everything it shows lies in three blocks of JSON beside it: the report (the
// same bytes as --format json), the timelines of its runs, and the pages of the rules it names.
"use strict";
(() => {
const json = id => JSON.parse(document.getElementById(id).textContent);
const report = json("report"), {runs, why} = json("runs"), rules = json("rules");
const LANES = ["compute", "buckets", "collectives", "hooks", "optimizer"];
const ENDS = ["", "failed", "never ended"];

/* ---- the page's own tools ---- */

function make(tag, attributes, ...children) {
  const ns = ["svg", "circle", "path", "text", "marker", "defs", "g"].includes(tag) && "http://www.w3.org/2000/svg";
  const e = ns ? document.createElementNS(ns, tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {}))
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v === true) e.setAttribute(k, "");
    else if (v !== false && v != null) e.setAttribute(k, v);
  e.append(...children.flat(9).filter(c => c != null && c !== false));
  return e;
}
const many = (n, one, some) => `${n} ${n === 1 ? one : some || one + "s"}`;
const ranksText = list => list.length === 1 ? `rank ${list[0]}` : `ranks ${ranges(list)}`;
function ranges(list) {
  const out = [];
  for (let i = 0; i < list.length;) {
    let j = i;
    while (j + 1 < list.length && list[j + 1] === list[j] + 1) j++;
    out.push(j - i > 1 ? `${list[i]}-${list[j]}` : list.slice(i, j + 1).join(", "));
    i = j + 1;
  }
  return out.join(", ");
}
function duration(ns) {
  for (const [unit, size] of [["min", 6e10], ["s", 1e9], ["ms", 1e6], ["us", 1e3]])
    if (ns >= size) return `${+(ns / size).toPrecision(4)} ${unit}`;
  return `${ns} ns`;
}
const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const defined = pairs => make("dl", null, pairs.filter(p => p[1] != null && p[1] !== "").map(([k, v]) => [make("dt", null, k), make("dd", null, v)]));
const table = (head, rows, cls) => make("table", {class: cls}, make("thead", null, make("tr", null, head.map(h => make("th", {scope: "col"}, String(h))))), make("tbody", null, rows));

/* ---- a timeline as objects ---- */

const WIDTH = 15;
function unpack(run) {
  const slices = [];
  for (let i = 0; i < run.slices.length; i += WIDTH) {
    const s = run.slices.slice(i, i + WIDTH);
    slices.push({rank: s[0], lane: s[1], row: s[2], end: s[3], label: run.labels[s[4]], step: s[5], micro: s[6], from: s[7], to: s[7] + s[8],
                 at: s[9], until: s[9] + s[10], bucket: s[11], group: s[12] < 0 ? null : run.groups[s[12]], sequence: s[13], bytes: s[14], id: slices.length});
  }
  run.slices = slices;
  run.name = p => run.params[p] ?? (p < 0 ? "" : `parameter ${p}`);
  return run;
}
function describe(s) {
  const words = [`rank ${s.rank}`, s.label];
  if (s.end) words.push(ENDS[s.end]);
  words.push(`step ${s.step}` + (s.micro ? `, micro-step ${s.micro}` : ""));
  if (s.bucket >= 0 && !/bucket/.test(s.label)) words.push(`bucket ${s.bucket}`);
  if (s.group != null) words.push(`group '${s.group}'`);
  if (s.bytes > 0) words.push(`${s.bytes.toLocaleString("en")} bytes`);
  words.push(`${duration(s.from)} to ${duration(s.to)}`, `events ${s.at + 1} to ${s.until + 1}`);
  return words.join(" · ");
}

/* ---- the timeline ---- */

function timeline(run, result, say) {
  const canvas = make("canvas", {tabindex: 0, role: "application", id: "timeline", "aria-label": "timeline of ranks: arrow keys walk, plus and minus zoom, slash searches"});
  const detail = make("div", {class: "detail mono", role: "status", "aria-live": "polite", id: "selected"}, "Nothing selected. Click a slice, or walk with the arrow keys.");
  const search = make("input", {type: "search", placeholder: "parameter, bucket 2, allreduce #7", "aria-label": "search the timeline", id: "search"});
  const found = make("span", {class: "dim", role: "status"});
  const ROW = 13, GAP = 3, LEFT = 132, TOP = 22, FOLD = 12, RANKS_SHOWN = 1000;
  const used = new Map();
  for (const s of run.slices) {
    const key = s.rank * 8 + s.lane;
    used.set(key, Math.max(used.get(key) ?? 0, s.row + 1));
  }
  /* Many ranks are folded to one row each, but for those that the report speaks of. */
  const concerned = [...new Set([...(result.hang ? result.hang.culprits : []), ...result.findings.flatMap(f => f.ranks ?? [])])].slice(0, 6);
  const unfolded = new Set(run.ranks <= FOLD ? Array.from({length: run.ranks}, (_, r) => r) : concerned);
  const ranks = Array.from({length: run.ranks}, (_, r) => r).filter(r => r < RANKS_SHOWN || concerned.includes(r));
  let lanes = [], top = new Map(), rankTop = [], height = 60;
  const rowsOf = (r, l) => Math.min(used.get(r * 8 + l) ?? 0, 6);
  function layout() {
    let y = TOP;
    lanes = [];
    top = new Map();
    for (const r of ranks) {
      rankTop[r] = y;
      for (let l = 0; l < LANES.length; l++) {
        const rows = rowsOf(r, l);
        if (!rows) continue;
        top.set(r * 8 + l, y);
        if (!unfolded.has(r)) continue;
        lanes.push({rank: r, lane: l, y});
        y += rows * ROW + GAP;
      }
      y += unfolded.has(r) ? GAP : ROW + GAP;
    }
    rankTop.end = y;
    height = Math.max(y + 6, 60);
  }
  layout();
  const byTime = {lo: s => s.from, hi: s => s.to, end: Math.max(run.end, 1), spot: p => p.ns, unit: duration};
  const byOrder = {lo: s => s.at, hi: s => s.until + 1, end: Math.max(run.events, 1), spot: p => p.at, unit: n => `event ${Math.round(n) + 1}`};
  let scale = result.findings.length || run.end === 0 ? byOrder : byTime;
  let from = 0, to = scale.end, selected = null, hits = [], cursor = null;
  const matched = new Set(), flagged = run.spots;
  const causes = new Set(run.slices.filter(s => flagged.some(p => p.rank === s.rank && s.at <= p.at && p.at <= s.until)).map(s => s.id));
  const yOf = s => unfolded.has(s.rank) ? (top.get(s.rank * 8 + s.lane) ?? -99) + Math.min(s.row, 5) * ROW : rankTop[s.rank] ?? -99;

  function draw() {
    const box = canvas.getBoundingClientRect(), dpr = window.devicePixelRatio || 1, width = box.width || 1000;
    canvas.width = width * dpr;
    canvas.height = height * dpr;
    canvas.style.height = height + "px";
    const g = canvas.getContext("2d");
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, width, height);
    const fg = color("fg"), dim = color("dim"), line = color("line"), span = to - from || 1, X = v => LEFT + (v - from) / span * (width - LEFT - 6);
    g.font = "11px system-ui,sans-serif";
    g.textBaseline = "middle";
    const ticks = Math.max(1, Math.min(8, Math.floor((width - LEFT) / 90)));
    for (let i = 0; i <= ticks; i++) {
      const v = from + span * i / ticks;
      g.fillStyle = dim;
      g.textAlign = i === ticks ? "right" : i ? "center" : "left";
      g.fillText(scale.unit(Math.floor(v)), X(v), 9);
      g.strokeStyle = line;
      g.beginPath();
      g.moveTo(X(v), TOP - 4);
      g.lineTo(X(v), height);
      g.stroke();
    }
    g.textAlign = "left";
    for (const r of ranks) {
      g.fillStyle = fg;
      g.font = "bold 12px system-ui,sans-serif";
      g.fillText(`${run.ranks > FOLD ? unfolded.has(r) ? "\u25be " : "\u25b8 " : ""}rank ${r}`, 4, rankTop[r] + 6);
      g.strokeStyle = line;
      g.beginPath();
      g.moveTo(0, rankTop[r] - 3);
      g.lineTo(width, rankTop[r] - 3);
      g.stroke();
    }
    g.font = "11px system-ui,sans-serif";
    for (const l of lanes) {
      g.fillStyle = dim;
      g.fillText(LANES[l.lane], 62, l.y + ROW / 2);
    }
    const fills = [0, 1, 2, 3, 4].map(i => color("c" + i)), inks = [0, 1, 2, 3, 4].map(i => color("t" + i)), open = color("open"), mark = color("mark");
    g.save();
    g.beginPath();
    g.rect(LEFT, TOP - 4, width - LEFT, height);
    g.clip();
    for (const s of run.slices) {
      if (rankTop[s.rank] == null || scale.hi(s) < from || scale.lo(s) > to) continue;
      const a = Math.max(X(scale.lo(s)), LEFT - 2), b = Math.min(X(scale.hi(s)), width + 2), w = Math.max(b - a, 1.5), ys = yOf(s);
      g.fillStyle = fills[s.lane];
      g.globalAlpha = hits.length && !matched.has(s.id) ? 0.2 : 1;
      g.fillRect(a, ys, w, ROW - 1);
      if (s.end) {
        /* Hatched as well as coloured: colour alone says nothing to everybody. */
        g.strokeStyle = open;
        g.lineWidth = 2;
        g.strokeRect(a + 1, ys + 1, Math.max(w - 2, 1), ROW - 3);
        for (let x = a + 4; x < Math.min(a + w, width); x += 7) {
          g.beginPath();
          g.moveTo(x, ys + 1);
          g.lineTo(x - 5, ys + ROW - 2);
          g.stroke();
        }
        g.lineWidth = 1;
      }
      if (causes.has(s.id)) {
        g.strokeStyle = mark;
        g.lineWidth = 3;
        g.strokeRect(a - 1, ys - 1, w + 2, ROW + 1);
        g.lineWidth = 1;
      }
      if (w > 26) {
        g.save();
        g.beginPath();
        g.rect(a, ys, w, ROW);
        g.clip();
        if (s.end) {
          /* over hatches the label has a rim of the slice's colour */
          g.strokeStyle = fills[s.lane];
          g.lineWidth = 4;
          g.lineJoin = "round";
          g.strokeText(s.label, a + 3, ys + ROW / 2);
          g.lineWidth = 1;
        }
        g.fillStyle = inks[s.lane];
        g.fillText(s.label, a + 3, ys + ROW / 2);
        g.restore();
      }
      g.globalAlpha = 1;
    }
    arrows(g, X, fg);
    for (const p of flagged) {
      const x = X(scale.spot(p));
      g.fillStyle = open;
      g.beginPath();
      const ys = rankTop[p.rank] ?? TOP;
      g.moveTo(x - 5, ys - 3);
      g.lineTo(x + 5, ys - 3);
      g.lineTo(x, ys + 6);
      g.fill();
    }
    if (cursor != null) {
      g.strokeStyle = open;
      g.setLineDash([4, 3]);
      g.beginPath();
      g.moveTo(X(cursor), 0);
      g.lineTo(X(cursor), height);
      g.stroke();
      g.setLineDash([]);
    }
    if (selected) {
      g.strokeStyle = fg;
      g.lineWidth = 2.5;
      const a = Math.max(X(scale.lo(selected)), LEFT), b = X(scale.hi(selected));
      g.strokeRect(a - 1.5, yOf(selected) - 1.5, Math.max(b - a, 2) + 3, ROW + 2);
    }
    g.restore();
  }
  /* From the last thing that a culprit did to the operations in which others wait for it; and, of a selected collective, to its peers. */
  function arrows(g, X, fg) {
    const join = (a, b, style) => {
      const x1 = X(scale.hi(a)), y1 = yOf(a) + ROW / 2, x2 = X(scale.lo(b)), y2 = yOf(b) + ROW / 2;
      g.strokeStyle = g.fillStyle = style;
      g.beginPath();
      g.moveTo(x1, y1);
      g.bezierCurveTo(x1 + 24, y1, x2 - 24, y2, x2, y2);
      g.stroke();
      g.beginPath();
      g.moveTo(x2, y2);
      g.lineTo(x2 - 7, y2 - 4);
      g.lineTo(x2 - 7, y2 + 4);
      g.fill();
    };
    for (const w of result.hang ? result.hang.waits.slice(0, 12) : []) {
      const waiting = run.slices.find(s => s.rank === w.rank && s.sequence === w.sequence && s.group === w.group && s.lane === 2);
      for (const peer of w.for.slice(0, 4)) {
        const last = lastOf(peer);
        if (waiting && last && result.hang.culprits.includes(peer)) join(last, waiting, color("bad"));
      }
    }
    if (selected && selected.sequence >= 0)
      for (const s of run.slices)
        if (s !== selected && s.sequence === selected.sequence && s.group === selected.group) join(selected, s, fg);
  }
  const lastCache = new Map();
  function lastOf(rank) {
    if (!lastCache.has(rank)) lastCache.set(rank, run.slices.filter(s => s.rank === rank).reduce((a, b) => !a || b.at > a.at ? b : a, null));
    return lastCache.get(rank);
  }
  function fold(rank) {
    if (rank == null) return;
    if (!unfolded.delete(rank)) unfolded.add(rank);
    layout();
    draw();
  }
  function select(s, reveal) {
    selected = s;
    detail.textContent = describe(s);
    canvas.dataset.selected = s.id;
    if (reveal && (scale.lo(s) < from || scale.hi(s) > to)) {
      const span = to - from, mid = (scale.lo(s) + scale.hi(s)) / 2;
      view(mid - span / 2, mid + span / 2);
    }
    draw();
  }
  function view(a, b) {
    const least = Math.max(scale.end / 1e6, scale === byOrder ? 4 : 10), span = Math.min(Math.max(b - a, least), scale.end);
    from = Math.min(Math.max(a, 0), scale.end - span);
    to = from + span;
    draw();
  }
  const zoom = (factor, at = (from + to) / 2) => view(at - (at - from) * factor, at + (to - at) * factor);
  const valueAt = x => from + (x - LEFT) / (canvas.getBoundingClientRect().width - LEFT - 6) * (to - from);
  function hit(event) {
    const box = canvas.getBoundingClientRect(), v = valueAt(event.clientX - box.left), py = event.clientY - box.top, slack = (to - from) / box.width * 3;
    let best = null;
    for (const s of run.slices)
      if (py >= yOf(s) && py < yOf(s) + ROW && v >= scale.lo(s) - slack && v <= scale.hi(s) + slack && (!best || s.until - s.at < best.until - best.at)) best = s;
    return best;
  }
  let drag = null;
  canvas.addEventListener("pointerdown", e => { drag = {x: e.clientX, from, to, moved: false}; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", e => {
    if (!drag) return;
    if (Math.abs(e.clientX - drag.x) > 3) drag.moved = true;
    const shift = (drag.x - e.clientX) / (canvas.getBoundingClientRect().width - LEFT) * (drag.to - drag.from);
    if (drag.moved) view(drag.from + shift, drag.to + shift);
  });
  canvas.addEventListener("pointerup", e => {
    const s = drag && !drag.moved && hit(e), wasClick = drag && !drag.moved, box = canvas.getBoundingClientRect();
    drag = null;
    if (s) select(s);
    else if (wasClick && e.clientX - box.left < LEFT) fold(ranks.filter(r => rankTop[r] <= e.clientY - box.top + 3).pop());
  });
  canvas.addEventListener("wheel", e => {
    if (!e.ctrlKey && !e.metaKey && !e.shiftKey) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : 0.8, valueAt(e.clientX - canvas.getBoundingClientRect().left));
  }, {passive: false});
  canvas.addEventListener("keydown", e => {
    const list = run.slices, i = selected ? selected.id : -1;
    const other = d => {
      const rank = Math.min(Math.max((selected ? selected.rank : 0) + d, 0), run.ranks - 1);
      const near = list.filter(s => s.rank === rank && s.lane === (selected ? selected.lane : 2));
      return near.reduce((a, b) => !a || Math.abs(b.at - (selected ? selected.at : 0)) < Math.abs(a.at - (selected ? selected.at : 0)) ? b : a, null);
    };
    const act = {ArrowRight: () => list[i + 1] && select(list[i + 1], true), ArrowLeft: () => list[i - 1] && select(list[i - 1], true),
                 ArrowDown: () => other(1) && select(other(1), true), ArrowUp: () => other(-1) && select(other(-1), true),
                 "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), "0": () => view(0, scale.end), "/": () => search.focus(),
                 PageDown: () => view(to, to + to - from), PageUp: () => view(from - (to - from), from), e: () => fold(selected ? selected.rank : 0), n: () => nextHit(1), N: () => nextHit(-1), t: flip}[e.key];
    if (!act || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    act();
  });
  let hitAt = -1;
  function nextHit(d) {
    if (!hits.length) return;
    hitAt = (hitAt + d + hits.length) % hits.length;
    found.textContent = `${hitAt + 1} of ${hits.length}`;
    select(hits[hitAt], true);
  }
  function seek() {
    const words = search.value.trim().toLowerCase();
    matched.clear();
    hits = [];
    hitAt = -1;
    found.textContent = "";
    if (words) {
      const param = Object.entries(run.params).filter(([, n]) => n.toLowerCase().includes(words)).map(([p]) => +p);
      const buckets = new Set(run.slots.filter(s => param.includes(s[4])).map(s => s[2]));
      hits = run.slices.filter(s => s.label.toLowerCase().includes(words) || `bucket ${s.bucket}` === words || `step ${s.step}` === words || (s.bucket >= 0 && buckets.has(s.bucket)));
      hits.forEach(s => matched.add(s.id));
      found.textContent = hits.length ? many(hits.length, "slice") : "nothing found";
    }
    draw();
  }
  search.addEventListener("input", seek);
  search.addEventListener("keydown", e => { if (e.key === "Enter") nextHit(e.shiftKey ? -1 : 1); });
  const flipButton = make("button", {onclick: flip, id: "scale"});
  const nameScale = () => { flipButton.textContent = scale === byTime ? "show order (t)" : "show time (t)"; };
  function flip() {
    scale = scale === byTime ? byOrder : byTime;
    from = 0;
    to = scale.end;
    nameScale();
    draw();
  }
  nameScale();
  /* The step in which a finding is, on all ranks; where nothing was going on, a part of the run. */
  function around(spot) {
    const at = scale.spot(spot), s = run.slices.filter(x => x.rank === spot.rank && x.at <= spot.at && spot.at <= x.until).pop();
    let low = at - scale.end / 24, high = at + scale.end / 24;
    if (s) {
      low = at;
      high = at + 1;
      for (const x of run.slices)
        if (x.step === s.step) {
          low = Math.min(low, scale.lo(x));
          high = Math.max(high, scale.hi(x));
        }
    }
    const rim = Math.max((high - low) / 10, scale === byOrder ? 20 : 1);
    return [Math.max(low - rim, 0), Math.min(high + rim, scale.end)];
  }
  function toFinding(i) {
    const p = flagged.find(s => s.finding === i);
    if (!p) return;
    view(...around(p));
    const s = run.slices.filter(x => x.rank === p.rank && x.at <= p.at).pop();
    if (s) select(s);
    canvas.scrollIntoView({block: "center"});
    canvas.focus();
  }
  const tools = make("div", {class: "tools"}, search, found,
    make("button", {onclick: () => zoom(0.7)}, "zoom in (+)"), make("button", {onclick: () => zoom(1.4)}, "zoom out (-)"), make("button", {onclick: () => view(0, scale.end)}, "all (0)"), flipButton,
    flagged.length ? make("button", {onclick: () => toFinding(flagged[0].finding), id: "jump"}, "to the finding") : null);
  const key = make("div", {class: "key dim"}, LANES.map((l, i) => make("span", null, make("i", {style: `background:var(--c${i})`}), l)),
    make("span", null, make("i", {style: "border:2px solid var(--open)"}), "failed or never ended (hatched)"), make("span", null, make("i", {style: "border:3px solid var(--mark)"}), "of a finding"),
    make("span", {class: "hint"}, "Drag to pan; wheel with Ctrl or Shift to zoom." + (run.ranks > FOLD ? " Ranks are folded: click a name, or press e." : "")));
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("print").addEventListener("change", draw);
  addEventListener("beforeprint", draw);
  const hidden = run.ranks - ranks.length, left = run.left || hidden ? make("p", {class: "warn"}, `Folded: ${[run.left, hidden ? `${many(hidden, "rank")} of ${run.ranks} have no row` : null].filter(Boolean).join("; ")}`) : null;
  /* A long run begins where its first finding is: there the whole of it would be a blur. */
  const LONG = 6000;
  if (flagged.length && run.events > LONG) {
    [from, to] = around(flagged[0]);
    detail.textContent = "Shown is what surrounds the first finding. Press 0 for the whole run. " + detail.textContent;
  }
  say({toFinding, setCursor: at => { cursor = at == null ? null : scale === byOrder ? at : null; draw(); }});
  return [tools, key, canvas, detail, left];
}

/* ---- who waits for whom ---- */

function waits(hang) {
  const groups = new Map(), culprits = new Set(hang.culprits);
  const add = (key, rank) => groups.set(key, [...(groups.get(key) ?? []), rank]);
  for (const w of hang.waits) add(JSON.stringify([w.operation, w.sequence, w.group, w.for, culprits.has(w.rank)]), w.rank);
  const peers = new Set(hang.waits.flatMap(w => w.for)), waiting = new Set(hang.waits.map(w => w.rank));
  const nodes = [...groups.entries()].map(([k, ranks]) => ({ranks, to: JSON.parse(k)[3], culprit: ranks.some(r => culprits.has(r))}));
  for (const p of peers) if (!waiting.has(p)) nodes.push({ranks: [p], to: [], culprit: culprits.has(p)});
  const shown = nodes.slice(0, 24), size = 420, mid = size / 2;
  shown.forEach((n, i) => {
    const angle = shown.length === 2 ? Math.PI * (1 + i) : 2 * Math.PI * i / shown.length - Math.PI / 2, far = shown.length === 1 ? 0 : 140;
    n.x = mid + 60 + far * 1.3 * Math.cos(angle);
    n.y = 170 + far * Math.sin(angle) * (shown.length === 2 ? 0 : 1);
  });
  const at = rank => shown.find(n => n.ranks.includes(rank)), edges = [];
  for (const n of shown)
    for (const target of new Set(n.to.map(at).filter(Boolean)))
      if (target !== n) {
        const dx = target.x - n.x, dy = target.y - n.y, d = Math.hypot(dx, dy) || 1, r = 40;
        edges.push(make("path", {class: "edge", "marker-end": "url(#tip)", d: `M${n.x + dx / d * r} ${n.y + dy / d * r} Q${(n.x + target.x) / 2 - dy / 9} ${(n.y + target.y) / 2 + dx / 9} ${target.x - dx / d * (r + 8)} ${target.y - dy / d * (r + 8)}`}));
      }
  const picture = make("svg", {viewBox: shown.length <= 2 ? `0 115 ${size + 120} 110` : `0 -15 ${size + 120} 370`, width: size + 120, height: shown.length <= 2 ? 110 : 370, role: "img", "aria-label": hang.headline},
    make("defs", null, make("marker", {id: "tip", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto"}, make("path", {d: "M0 0L8 4L0 8z", fill: "currentColor"}))), edges,
    shown.map(n => make("g", null, make("circle", {cx: n.x, cy: n.y, r: 38, class: n.culprit ? "culprit" : null}), make("text", {x: n.x, y: n.y - (n.culprit ? 4 : -4), "text-anchor": "middle"}, n.ranks.length > 1 ? ranges(n.ranks) : `rank ${n.ranks[0]}`),
      n.culprit ? make("text", {x: n.x, y: n.y + 14, "text-anchor": "middle"}, "culprit") : null)));
  const alike = new Map();
  for (const w of hang.waits) {
    const key = JSON.stringify([w.operation, w.sequence, w.bucket, w.group, w.for, w.status]);
    if (!alike.has(key)) alike.set(key, {w, ranks: []});
    alike.get(key).ranks.push(w.rank);
  }
  const rows = [...alike.values()].map(({w, ranks}) => make("tr", null, make("td", null, ranksText(ranks)), make("td", null, w.sequence == null || w.sequence < 0 ? "outside a collective" : `${w.operation} #${w.sequence}` + (w.bucket != null && w.bucket >= 0 ? `, bucket ${w.bucket}` : "")), make("td", null, w.group ?? ""), make("td", null, w.for.length ? ranksText(w.for) : "not known"), make("td", null, w.status)));
  return [picture, nodes.length > shown.length ? make("p", {class: "dim"}, `${nodes.length - shown.length} more are in the table.`) : null, make("div", {class: "scroll"}, table(["who", "waits in", "group", "for", "and then"], rows))];
}

/* ---- the order of collectives ---- */

function order(run) {
  const groups = new Map();
  for (const s of run.slices)
    if (s.lane === 2) {
      if (!groups.has(s.group)) groups.set(s.group, new Map());
      const rows = groups.get(s.group);
      if (!rows.has(s.sequence)) rows.set(s.sequence, new Map());
      rows.get(s.sequence).set(s.rank, s);
    }
  const SIDE_BY_SIDE = 8, out = [], say = s => s ? s.label.replace(/ #\d+$/, "") + (s.bucket >= 0 ? ` b${s.bucket}` : "") + (s.bytes > 0 ? ` ${s.bytes} B` : "") : "";
  for (const [group, rows] of groups) {
    const ranks = [...new Set([...rows.values()].flatMap(r => [...r.keys()]))].sort((a, b) => a - b), body = [];
    /* Many ranks: those that posted the same share a column. */
    const columns = new Map();
    for (const k of ranks) {
      const key = ranks.length <= SIDE_BY_SIDE ? k : JSON.stringify([...rows].map(([q, r]) => [q, say(r.get(k))]));
      columns.set(key, [...(columns.get(key) ?? []), k]);
    }
    const all = [...columns.values()], shown = all.slice(0, 64).map(c => c[0]), left = all.slice(64).flat().length;
    let equal = [], first = true;
    const fold = () => {
      const hide = equal.length > 6 ? equal.slice(2, -2) : [];
      for (const [q, r] of equal) {
        if (hide.length && q === hide[0][0]) body.push(make("tr", null, make("td", {colspan: shown.length + 1, class: "folded"}, `#${q} to #${hide[hide.length - 1][0]}: the same on all ranks`)));
        if (!hide.some(h => h[0] === q)) body.push(make("tr", null, make("td", null, `#${q}`), shown.map(k => make("td", null, say(r.get(k))))));
      }
      equal = [];
    };
    for (const [q, r] of [...rows].sort((a, b) => a[0] - b[0])) {
      const texts = ranks.map(k => say(r.get(k))), common = texts.slice().sort((a, b) => texts.filter(t => t === b).length - texts.filter(t => t === a).length)[0];
      if (texts.every(t => t === texts[0])) { equal.push([q, r]); continue; }
      fold();
      body.push(make("tr", {id: first ? `divergence-${out.length}` : null}, make("td", {class: first ? "differs" : null}, `#${q}${first ? " first difference" : ""}`),
        shown.map(k => make("td", {class: !r.get(k) ? "missing" : say(r.get(k)) !== common ? "differs" : null}, say(r.get(k)) || "nothing"))));
      first = false;
    }
    fold();
    out.push(make("h3", null, `group '${group}'`, make("span", {class: "dim"}, first ? ": the same order on all its ranks" : "")), make("div", {class: "scroll"}, table(["#", ...all.slice(0, 64).map(ranksText)], body)));
    if (left) out.push(make("p", {class: "dim"}, `${many(left, "more rank is", "more ranks are")} compared, and not shown.`));
  }
  return out.length ? out : [make("p", {class: "dim"}, "No collective was posted.")];
}

/* ---- buckets ---- */

function buckets(run) {
  const DT = run.dtypes, layouts = new Map();
  const several = run.slots.some(s => s[8]);
  for (const [rank, generation, bucket, slot, param, offset, numel, dtype, wrapper = 0] of run.slots) {
    const key = `${wrapper}/${generation}/${rank}`;
    if (!layouts.has(key)) layouts.set(key, {rank, generation, wrapper, buckets: new Map()});
    const b = layouts.get(key).buckets;
    if (!b.has(bucket)) b.set(bucket, []);
    b.get(bucket).push({slot, param, offset, numel, dtype});
  }
  const sizes = [...layouts.values()].flatMap(l => [...l.buckets.values()].map(b => b.reduce((n, s) => n + s.numel, 0))), most = Math.max(...sizes, 1);
  return [...layouts.values()].slice(0, 24).map(l => [
    make("h3", null, (l.generation ? `rebuilt layout ${l.generation}` : "first layout") + (several ? ` of wrapper ${l.wrapper}` : ""), make("span", {class: "dim"}, ` as rank ${l.rank} has it; ${many(l.buckets.size, "bucket")}`)),
    [...l.buckets].slice(0, 200).map(([b, slots]) => {
      const n = slots.reduce((a, s) => a + s.numel, 0);
      return make("div", {class: "bucket"}, make("b", {class: "mono"}, `bucket ${b}`), make("div", {class: "bar", style: `max-width:${Math.max(100 * n / most, 1)}%`, role: "img", "aria-label": `bucket ${b}: ${slots.map(s => run.name(s.param)).join(", ")}`},
        slots.map(s => make("span", {style: `flex:${s.numel} 0 0`, title: `${run.name(s.param)}: ${s.numel} elements of ${DT[s.dtype] ?? "?"} at ${s.offset}`}, run.name(s.param)))), make("span", {class: "dim mono"}, n.toLocaleString("en")));
    })]).flat(3);
}

/* ---- overlap ---- */

function union(list) {
  const out = [];
  for (const [a, b] of list.sort((x, y) => x[0] - y[0]))
    if (out.length && a <= out[out.length - 1][1]) out[out.length - 1][1] = Math.max(b, out[out.length - 1][1]);
    else out.push([a, b]);
  return out;
}
const length = list => list.reduce((n, [a, b]) => n + b - a, 0);
function overlap(run) {
  const steps = new Map();
  for (const s of run.slices) {
    if ((s.lane !== 0 && s.lane !== 2) || s.end) continue;
    const key = s.step * 65536 + s.rank;
    if (!steps.has(key)) steps.set(key, [[], []]);
    steps.get(key)[s.lane / 2].push([s.from, s.to]);
  }
  const rows = [...steps].sort((a, b) => a[0] - b[0]).map(([key, [c, m]]) => {
    const compute = length(union(c.slice())), comm = length(union(m.slice())), both = length(union([...c, ...m]));
    return {step: Math.floor(key / 65536), rank: key % 65536, compute, comm, exposed: both - compute};
  });
  const most = Math.max(...rows.map(r => r.comm), 0);
  if (!most) return [make("p", {class: "dim"}, "Communication took no time in this run: its network has no latency. Give the scenario a [network] to see overlap.")];
  const total = rows.reduce((a, r) => [a[0] + r.comm, a[1] + r.exposed], [0, 0]);
  return [make("p", null, `${(100 * (1 - total[1] / (total[0] || 1))).toFixed(1)} % of the time of collectives lies beside computing; ${duration(total[1])} of it is exposed, over all ranks and steps.` + (rows.length > 400 ? ` The first 400 of ${rows.length.toLocaleString("en")} steps of ranks:` : "")),
    make("div", {class: "scroll"}, table(["step", "rank", "computing", "collectives", "exposed", ""], rows.slice(0, 400).map(r => make("tr", null, make("td", null, String(r.step)), make("td", null, String(r.rank)), make("td", null, duration(r.compute)), make("td", null, duration(r.comm)), make("td", null, duration(r.exposed)),
      make("td", {style: "min-width:220px"}, make("span", {class: "lane", style: `width:${200 * (r.comm - r.exposed) / most}px`}), make("span", {class: "lane exposed", style: `width:${200 * r.exposed / most}px`}))))))];
}

/* ---- used maps and values ---- */

function usedMap(run) {
  if (!run.uses.length) return null;
  const cells = new Map(), steps = new Set(), params = new Set(), ranks = new Set();
  for (const [rank, step, param, used] of run.uses) {
    cells.set(`${rank}/${step}/${param}`, used);
    steps.add(step);
    params.add(param);
    if (rank >= 0) ranks.add(rank);
  }
  const S = [...steps].sort((a, b) => a - b).slice(0, 60), P = [...params].sort((a, b) => a - b).slice(0, 200), R = [...ranks].sort((a, b) => a - b);
  const rows = P.map(p => make("tr", null, make("th", {scope: "row", class: "mono"}, run.name(p)), S.map(s => {
    const used = R.filter(r => cells.get(`${r}/${s}/${p}`) > 0), n = R.filter(r => cells.has(`${r}/${s}/${p}`)).length;
    return make("td", {class: !n ? null : used.length === n ? "x1" : used.length ? "x0" : null, title: n ? `step ${s}: used by ${used.length ? ranksText(used) : "no rank"}` : "not in a map"}, !n ? "" : used.length === n ? "all" : used.length ? ranges(used) : "none");
  })));
  return [make("p", {class: "dim"}, `Which ranks used a parameter in the window of a step${steps.size > 60 || params.size > 200 ? "; the first 60 steps and 200 parameters" : ""}.`), make("div", {class: "scroll"}, table(["parameter", ...S.map(s => `step ${s}`)], rows))];
}

/* Thousands of cells are one stop of the Tab key; arrow keys go from cell to cell. */
function walkable(grid) {
  const first = grid.querySelector("button");
  if (first) first.tabIndex = 0;
  grid.addEventListener("keydown", e => {
    const step = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[e.key], cell = e.target.closest("td");
    if (!step || !cell || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    let column = cell.cellIndex, row = cell.parentNode, next = null;
    while (row && !next) {
      column += step[0];
      row = step[1] > 0 ? row.nextElementSibling : step[1] < 0 ? row.previousElementSibling : row;
      if (!row || column < 1 || column >= row.cells.length) return;
      next = row.cells[column].querySelector("button");
    }
    if (!next) return;
    e.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    next.click();
  });
  grid.addEventListener("click", e => {
    if (e.target.tagName !== "BUTTON") return;
    for (const b of grid.querySelectorAll("button[tabindex='0']")) b.tabIndex = -1;
    e.target.tabIndex = 0;
  });
}

function values(run) {
  if (!run.cells.length) return null;
  const LINK = run.links, SHAPE = run.shapes, lines = new Map(), columns = new Map();
  for (const c of run.cells) {
    const [rank, step, , link, param, , , bad] = c, key = `${link}/${param}`, column = step * 65536 + rank;
    if (!lines.has(key)) lines.set(key, {link, param, bad: 0, cells: new Map()});
    const line = lines.get(key);
    line.bad += bad > 0 ? 1 : 0;
    const before = line.cells.get(column);
    if (!before || bad > before[7]) line.cells.set(column, c);
    if (!columns.has(column)) columns.set(column, {step, rank, bad: false});
    columns.get(column).bad ||= bad > 0;
  }
  /* Where there is no room for all: wrong columns, then the rest of their steps. */
  const hurt = new Set([...columns.values()].filter(k => k.bad).map(k => k.step)), fits = columns.size <= 96, worth = k => (fits ? 0 : columns.get(k).bad ? 0 : hurt.has(columns.get(k).step) ? 1 : 2);
  const C = [...columns.keys()].sort((a, b) => worth(a) - worth(b) || a - b).slice(0, 96), note = make("div", {class: "detail mono", role: "status", "aria-live": "polite", id: "value"}, "Choose a cell, or walk with the arrow keys, to see what was expected and what was found.");
  const show = (line, c) => { const [rank, step, micro, link, param, element, ulps, bad, shape, expected, actual, bound, ratio] = c; note.textContent = `rank ${rank} · step ${step}${micro ? `, micro-step ${micro}` : ""} · ${LINK[link]} of ${run.name(param) || `#${param}`}` + (bad ? ` · element ${element}: expected ${expected}, found ${actual}, ${ulps} ulps away; ${many(bad, "element")} beyond the bound ${bound}; ${SHAPE[shape]}${ratio ? `, ratio ${ratio}` : ""}` : ulps ? ` · within the bound ${bound}, at most ${ulps} ulps away` : " · bit for bit"); };
  const all = [...lines.values()].sort((a, b) => (b.bad > 0) - (a.bad > 0) || a.link - b.link || a.param - b.param), rows = all.slice(0, 160).map(line => make("tr", null, make("th", {scope: "row", class: "mono"}, `${run.name(line.param) || `#${line.param}`}, ${LINK[line.link]}`), C.map(k => {
    const c = line.cells.get(k);
    if (!c) return make("td");
    const state = c[7] > 0 ? 2 : c[6] > 0 ? 1 : 0;
    return make("td", {class: "x" + state}, make("button", {onclick: () => show(line, c), tabindex: -1, "aria-label": `rank ${c[0]}, step ${c[1]}, ${["bit for bit", "within the bound", "wrong"][state]}`}, ["=", "≈", "✕"][state]));
  })));
  const grid = table(["tensor, link", ...C.map(k => `s${columns.get(k).step} r${columns.get(k).rank}`)], rows, "strip");
  walkable(grid);
  return [make("p", {class: "dim"}, "= bit for bit, ≈ within its bound, ✕ beyond it. Wrong ones stand first" + (all.length > 160 || !fits ? `; ${Math.min(all.length, 160)} of ${all.length} tensors and ${C.length} of ${columns.size} columns` : "") + "."), C.length > 15 ? make("p", {class: "dim paper"}, "On paper: the first 15 columns.") : null, make("div", {class: "scroll"}, grid), note];
}

/* ---- the schedule ---- */

function schedule(run, cursor) {
  if (!run.picks.length) return null;
  let at = 0;
  const note = make("div", {class: "detail mono", role: "status", "aria-live": "polite", id: "choice"}), slider = make("input", {type: "range", min: 0, max: run.picks.length - 1, value: 0, style: "width:min(40rem,90%)", "aria-label": "choice of the schedule"});
  const show = i => {
    at = Math.min(Math.max(i, 0), run.picks.length - 1);
    slider.value = at;
    const [event, point, options, chosen, who, name] = run.picks[at];
    note.textContent = `choice ${at + 1} of ${run.picks.length}, event ${event + 1}: ${run.points[point] ?? "?"}${who >= 0 ? ` of rank ${who}` : ""}: took ${chosen} of ${many(options, "option")}` + (name && name !== run.points[point] ? ` (${name})` : "");
    cursor(event);
  };
  slider.addEventListener("input", () => show(+slider.value));
  show(0);
  cursor(null);
  return [make("p", {class: "dim hint"}, "Walk with the arrow keys; the dashed line in the timeline's order follows."), make("div", {class: "tools"}, make("button", {onclick: () => show(at - 1), "aria-label": "choice before"}, "←"), slider, make("button", {onclick: () => show(at + 1), "aria-label": "next choice"}, "→")), note];
}

/* ---- a result ---- */

function findingCard(f, i, result, jump) {
  const rule = rules[f.invariant], place = [`step ${f.step}`, f.ranks && f.ranks.length ? ranksText(f.ranks) : null, f.peer != null ? `against rank ${f.peer}` : null, f.bucket != null ? `bucket ${f.bucket}` : null, f.parameter ? `parameter ${f.parameter}` : null].filter(Boolean).join(", ");
  return make("article", {class: "finding" + (result.verdict === "verified" ? " expected" : ""), id: `finding-${i}`}, make("h3", null, `${f.invariant}: ${f.title}`),
    defined([["where", place], ["expected", f.expected], ["found", f.actual], ["advice", f.advice]]),
    make("div", {class: "tools"}, jump ? make("button", {onclick: () => jump(i)}, "show in the timeline") : null),
    f.events && f.events.length ? make("details", null, make("summary", null, many(f.events.length, "event")), make("pre", null, f.events.join("\n"))) : null,
    rule ? make("details", null, make("summary", null, `what ${f.invariant} says`), make("pre", null, rule)) : null);
}

/* A row per line; a sweep has a column for each setting and cost. */
function asked(lines, marks) {
  const keys = [...new Set(lines.flatMap(l => Object.keys(l.facts ?? {})))].filter(k => k !== "verdict");
  const say = (k, v) => v == null ? "" : typeof v !== "number" ? v : k.endsWith("_ns") ? duration(Math.round(v)) : Math.round(v).toLocaleString("en");
  const state = l => make("td", {class: {passed: "good", failed: "bad"}[l.state] || "warn"}, `${marks[l.state]} ${l.facts?.verdict ?? l.state}`);
  if (keys.length) return table(["", ...keys.map(k => k.replace(/_(ns|bytes)$/, "").replaceAll("_", k.includes(".") ? "_" : " ")), "found"], lines.map(l => make("tr", {class: "state-" + l.state}, state(l), keys.map(k => make("td", null, say(k, l.facts?.[k]))), make("td", null, l.message))));
  return table(["", "asked", "what", "cases", "found"], lines.map(l => make("tr", {class: "state-" + l.state}, state(l), make("th", {scope: "row"}, l.name), make("td", null, l.title), make("td", null, l.cases != null ? l.cases.toLocaleString("en") : ""), make("td", null, l.message))));
}

/* What a search, a proof, a battery or a comparison says. */
function card() {
  const facts = Object.entries(report.facts).map(([k, v]) => [k.replaceAll("_", " "), typeof v === "number" ? v.toLocaleString("en") : v]), marks = {passed: "✓", failed: "✗", open: "?", skipped: "–"};
  const color = {0: "good", 1: "bad"}[report.exit_code] || "warn", shown = report.lines.filter(l => l.state === "failed" || l.state === "open");
  return make("section", {id: "card"}, make("h1", null, `${report.command} ${report.subject}`), make("p", null, make("span", {class: "verdict " + color}, report.verdict)),
    shown.length ? make("p", {class: "headline", id: "culprit"}, `${shown[0].name}: ${shown[0].message || shown[0].title}`) : null, defined(facts),
    report.lines.length ? make("div", {class: report.lines.length > 60 ? "scroll" : "wide", tabindex: 0, role: "region", "aria-label": "what was asked"}, asked(report.lines, marks)) : null);
}

function section(id, title, content) {
  return content && content.length ? make("section", {id, "aria-labelledby": id + "-h"}, make("h2", {id: id + "-h"}, title), content) : null;
}

function show(index) {
  const result = report.results[index], main = document.getElementById("main"), nav = document.getElementById("nav");
  const run = runs[index] && (Array.isArray(runs[index].slices) && typeof runs[index].slices[0] !== "object" ? unpack(runs[index]) : runs[index]);
  const good = result.verdict === "verified", state = result.as_expected ? "as expected" : result.verdict;
  let handle = {};
  const draw = run && timeline(run, result, h => { handle = h; });
  const lead = result.hang ? result.hang.headline : result.findings.length ? `${result.findings[0].invariant}: ${result.findings[0].title}` : result.summary || result.title;
  const parts = [
    make("section", {id: "verdict"}, report.lines ? make("h2", null, "A run that shows it: " + (result.title || result.source)) : make("h1", null, result.title || result.source), make("p", null, make("span", {class: "verdict " + (good ? "good" : result.verdict === "findings" ? "bad" : "warn")}, state), " ", make("span", {class: "dim mono"}, result.source + (result.run ? ` run ${result.run}` : ""))),
      lead !== state ? make("p", {class: "headline", id: report.lines ? "culprit-of-run" : "culprit"}, lead) : null, result.reason && result.reason !== lead ? make("p", null, result.reason) : null,
      defined([["proven", result.proven], ["not judged", result.unjudged], ["ranks", result.world_size], ["steps", result.steps], ["backend", result.backend], ["seed", result.seed], ["events", result.events != null ? result.events.toLocaleString("en") : null], ["trace", result.trace]]),
      result.reproduce ? make("pre", {id: "reproduce", "aria-label": "the line that runs it again"}, result.reproduce + (result.shrink ? "\n" + result.shrink : "")) : null),
    section("findings", many(result.findings.length, "finding"), result.findings.map((f, i) => findingCard(f, i, result, run && run.spots.some(p => p.finding === i) ? k => handle.toFinding(k) : null))),
    section("time", "Timeline", draw), section("hang", "Who waits for whom", result.hang && waits(result.hang)), section("order", "Order of collectives", run && order(run)),
    section("buckets", "Buckets", run && buckets(run)), section("overlap", "Overlap", run && overlap(run)), section("used", "Used parameters", run && usedMap(run)), section("values", "Values", run && values(run)),
    section("schedule", "Schedule", run && schedule(run, at => handle.setCursor && handle.setCursor(at))),
    !run && section("time", "Timeline", [make("p", {class: "dim"}, why || "This run has no events here: record it with --trace and make the page with report.")])].filter(Boolean);
  if (report.lines) parts.unshift(card());
  main.replaceChildren(...parts);
  nav.replaceChildren(...(report.results.length > 1 ? [make("select", {"aria-label": "result", id: "pick", onchange: e => show(+e.target.value)}, report.results.map((r, i) => make("option", {value: i, selected: i === index}, `${i + 1}. ${r.as_expected ? "as expected" : r.verdict}: ${r.title || r.source}`)))] : []),
    ...parts.filter(p => p.id !== "verdict" && p.id !== "card").map(p => make("a", {href: "#" + p.id}, p.querySelector("h2").textContent)), make("a", {href: "#text"}, "As text"));
  document.title = report.lines ? `${report.verdict}: ${report.subject}` : `${state}: ${result.title || result.source}`;
}

/* What is folded has no handle on paper. The text repeats the page, and stays away. */
addEventListener("beforeprint", () => { for (const d of document.querySelectorAll(".finding details:not([open])")) { d.open = true; d.dataset.wasClosed = ""; } });
addEventListener("afterprint", () => { for (const d of document.querySelectorAll("details[data-was-closed]")) { d.open = false; delete d.dataset.wasClosed; } });

const worst = report.results.findIndex(r => r.verdict === "findings");
if (report.results.length === 0 && report.lines) {
  document.getElementById("main").replaceChildren(card());
  document.getElementById("nav").replaceChildren(make("a", {href: "#text"}, "As text"));
  document.title = `${report.verdict}: ${report.subject}`;
} else show(worst >= 0 ? worst : Math.max(report.results.findIndex(r => r.hang || r.verdict !== "verified"), 0));
})();
