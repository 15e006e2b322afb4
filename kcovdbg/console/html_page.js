// SPDX-License-Identifier: LGPL-2.1-or-later
"use strict";
// What is too much to open at once: chunks in zlib's format and base64, unpacked when they are first looked at.
function decode(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  // A tenth of the time of Uint8Array.from() with a function.
  for (let index = 0; index < bytes.length; index += 1) bytes[index] = characters.charCodeAt(index);
  return bytes;
}
function numbers({bits, words}) {
  const {buffer} = decode(words);
  return new ({8: Uint8Array, 16: Uint16Array, 32: Uint32Array, 64: BigUint64Array}[bits])(buffer);
}
async function unpack(id) {
  const bytes = decode(document.getElementById(id).textContent);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

// Of a file without text: its consecutive lines.
function lineRuns(lines) {
  const runs = [];
  for (const line of lines) {
    if (runs.length && runs.at(-1)[1] === line - 1) runs.at(-1)[1] = line;
    else runs.push([line, line, ""]);
  }
  return runs;
}

// Files of source: what listing.py makes of those that are not packed.
function sourceMarkup([name, hunks, packedLines, packedStates, packedHits]) {
  const [lines, states, ...hits] = [packedLines, packedStates, ...packedHits].map(numbers);
  const [headings, kinds] = JSON.parse(document.getElementById("sources").textContent);
  const plain = (text) => text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
  const parts = [
    `<div class="scroll" role="region" aria-label="${plain(name)}" tabindex="0">`,
    `<table class="source"><caption class="hidden">${plain(name)}</caption><thead class="hidden"><tr>`,
    ...headings.map((heading) => `<th scope="col">${plain(heading)}</th>`),
    "</tr></thead>",
  ];
  const marks = kinds.map(([, sign, words]) =>
    `<td class="mark" title="${plain(words)}"><span aria-hidden="true">${plain(sign)}</span>`
    + `<span class="hidden">${plain(words)}</span></td>`);
  const empty = "<td></td>".repeat(hits.length + 1);
  let at = 0;
  for (const [first, last, text] of hunks.length ? hunks : lineRuns(lines)) {
    const codes = text.split("\n");
    parts.push("<tbody>");
    for (let line = first; line <= last; line += 1) {
      const code = `<td class="line">${line}</td><td class="code">${plain(codes[line - first] ?? "")}</td></tr>`;
      if (lines[at] === line) {
        const cells = hits.map((counts) => `<td class="hits">${counts[at] || ""}</td>`).join("");
        parts.push(`<tr class="c-${kinds[states[at]][0]}">${cells}${marks[states[at]]}${code}`);
        at += 1;
      } else {
        parts.push(`<tr>${empty}${code}`);
      }
    }
    parts.push("</tbody>");
  }
  return `${parts.join("")}</table></div>`;
}

document.addEventListener("toggle", async ({target: file}) => {
  const chunk = file.dataset?.chunk;
  if (!chunk || !file.open) return;
  delete file.dataset.chunk;
  file.insertAdjacentHTML("beforeend", sourceMarkup(JSON.parse(await unpack(chunk))));
  watchWidths(file);
}, true);

(() => {
  const holder = document.getElementById("trace");
  if (!holder) return;
  const data = JSON.parse(holder.textContent);
  const pair = data.records.length > 1;
  // Points, of which a large trace has chunks: a promise while one is unpacked, then a function of a point's index.
  const chunks = [];
  const WAITING = ["…", "", ""];
  function pointAt(number) {
    if (data.points) return data.points[number];
    const chunk = Math.floor(number / data.chunk);
    if (typeof chunks[chunk] === "function") return chunks[chunk](number % data.chunk);
    if (!chunks[chunk]) loadChunk(chunk).then(draw);
    return WAITING;
  }
  function loadChunk(chunk) {
    chunks[chunk] ??= unpack(`points-${chunk}`).then((text) => {
      chunks[chunk] = chunkReader(JSON.parse(text));
    });
    return Promise.resolve(chunks[chunk]);
  }
  // What PointChunk.points() in trace.py returns.
  function chunkReader({base, offset, strings, words, ...packed}) {
    const [steps, tailed, lengths, frames, functions, files, lines] = packed.numbers.map(numbers);
    const tails = new Set(tailed);
    let last = BigInt(base);
    const pcs = Array.from(steps, (step) => (last += BigInt(step)));
    const size = pcs.length + Object.keys(words).length;
    // Of each point the index of its PC and that of its first frame.
    const plain = new Int32Array(size).fill(-1);
    const starts = new Int32Array(pcs.length);
    for (let index = 0, next = 0, start = 0; index < size; index += 1) {
      if (index in words) continue;
      starts[next] = start;
      start += lengths[next];
      plain[index] = next;
      next += 1;
    }
    const name = (frame) => strings[functions[frame]] || data.unknown;
    const place = (frame) => strings[files[frame]] + (strings[files[frame]] && lines[frame] ? `:${lines[frame]}` : "");
    const hex = (value) => `0x${BigInt.asUintN(64, value).toString(16)}`;
    const read = (index) => {
      const at = plain[index];
      if (at < 0) return words[index];
      const pc = pcs[at];
      const chain = [...frames.subarray(starts[at], starts[at] + lengths[at])];
      const inner = name(chain[0]);
      const outer = name(chain.at(-1));
      const head = BigInt(offset) ? `${hex(pc)} at ${hex(pc + BigInt(offset))}  ` : `${hex(pc)}  `;
      return [
        (inner === outer ? inner : inner + data.arrow + outer) + (tails.has(at) ? ` ${data.approximate}` : ""),
        place(chain[0]),
        head + chain.map((number) => `${name(number)} ${place(number)}`).join(data.arrow),
      ];
    };
    read.size = size;
    return read;
  }
  const records = data.records.map(numbers);
  // Segments: what both have, or what is between; of one trace there is a single one.
  const segments = pair ? data.segments : [[0, records[0].length, 0, 0, 1]];
  const starts = new Float64Array(segments.length + 1);
  segments.forEach((segment, number) => {
    starts[number + 1] = starts[number] + Math.max(segment[1], segment[3]);
  });
  const count = starts[segments.length];
  const differences = pair ? segments.flatMap((segment, number) => (segment[4] ? [] : [number])) : [];
  const panes = records.map((_, number) => {
    const box = document.getElementById(`pane${number}`);
    return {box, height: box.querySelector(".height"), shown: box.querySelector(".shown")};
  });
  const position = document.getElementById("position");
  const detail = document.getElementById("detail");
  const find = document.getElementById("find");
  const ROW = 22;
  // Beyond some millions of pixels browsers cut a box: then a pixel of the scroll bar stands for more than a row's part.
  const TALLEST = 8e6;
  let top = 0;
  let current = 0;
  let said = "";

  const visible = () => Math.max(1, Math.floor(panes[0].box.clientHeight / ROW));
  const lastTop = () => Math.max(0, count - visible());
  const height = () => Math.min(count * ROW, TALLEST);

  function segmentOf(row) {
    let low = 0;
    let high = segments.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // The record of a row on a side, -1 for a gap.
  function recordAt(segment, row, side) {
    const at = row - starts[segment];
    const [left, leftLength, right, rightLength] = segments[segment];
    if (side === 0) return at < leftLength ? left + at : -1;
    return at < rightLength ? right + at : -1;
  }

  function markOf(segment, row) {
    if (segments[segment][4]) return "";
    if (recordAt(segment, row, 0) < 0) return "right";
    return recordAt(segment, row, 1) < 0 ? "left" : "changed";
  }

  const SIGNS = {"": "", left: "<", right: ">", changed: "|"};
  const WORDS = {left: "only here", right: "only here", changed: "differs"};

  function cell(kind, content) {
    const element = document.createElement("span");
    element.className = kind;
    element.setAttribute("role", "gridcell");
    element.textContent = content;
    return element;
  }

  /** A place whose path may be cut at its beginning, and whose line number stays. */
  function makePlace(text) {
    const element = cell("where", "");
    const colon = text.lastIndexOf(":");
    const path = document.createElement("span"), inner = document.createElement("bdi"), line = document.createElement("span");
    path.className = "file";
    inner.textContent = colon < 0 ? text : text.slice(0, colon);
    line.textContent = colon < 0 ? "" : text.slice(colon);
    path.append(inner);
    element.append(path, line);
    return element;
  }

  function makeRow(side, segment, row) {
    const element = document.createElement("div");
    element.setAttribute("role", "row");
    element.setAttribute("aria-rowindex", row + 1);
    element.setAttribute("aria-selected", row === current ? "true" : "false");
    element.id = `row${side}-${row}`;
    const index = recordAt(segment, row, side);
    if (index < 0) {
      element.className = "row gap";
      element.append(cell("number", ""));
      element.lastChild.setAttribute("aria-label", "gap");
    } else {
      const mark = pair ? markOf(segment, row) : "";
      element.className = `row ${mark}`;
      const point = pointAt(records[side][index]);
      element.append(cell("number", index));
      if (pair) {
        const sign = cell("sign", SIGNS[mark]);
        if (mark) sign.setAttribute("aria-label", WORDS[mark]);
        element.append(sign);
      }
      element.append(cell("function", point[0]), makePlace(point[1]));
    }
    element.addEventListener("click", () => select(row));
    return element;
  }

  function draw() {
    const rows = visible() + 1;
    const end = Math.min(count, top + rows);
    panes.forEach(({box, shown}, side) => {
      const made = [];
      for (let row = top, segment = count ? segmentOf(top) : 0; row < end; row += 1) {
        while (row >= starts[segment + 1]) segment += 1;
        made.push(makeRow(side, segment, row));
      }
      shown.replaceChildren(...made);
      if (current >= top && current < end) box.setAttribute("aria-activedescendant", `row${side}-${current}`);
      else box.removeAttribute("aria-activedescendant");
    });
    tell();
  }

  function tell() {
    if (!count) {
      position.textContent = "no records";
      return;
    }
    const segment = segmentOf(current);
    let text = `row ${current + 1} of ${count}`;
    if (pair) {
      const number = differences.indexOf(segment);
      if (!differences.length) text += ", no difference";
      else if (number >= 0) text += `, difference ${number + 1} of ${differences.length}`;
      else text += `, ${differences.length} difference${differences.length > 1 ? "s" : ""}`;
    }
    // A live region that is set anew is read out anew.
    if (text !== said) position.textContent = said = text;
    detail.replaceChildren();
    panes.forEach((_, side) => {
      const index = recordAt(segment, current, side);
      if (index < 0) return;
      const line = document.createElement("div");
      line.textContent = `${pair ? (side ? "right " : "left ") : ""}[${index}] ${pointAt(records[side][index])[2]}`;
      detail.append(line);
    });
  }

  // Where each scroll bar was put by us: an event that finds it there is no user's.
  const put = panes.map(() => 0);

  function place() {
    const range = height() - panes[0].box.clientHeight;
    const at = lastTop() ? (top / lastTop()) * Math.max(range, 0) : 0;
    panes.forEach(({box}, side) => {
      box.scrollTop = at;
      put[side] = box.scrollTop;
    });
  }

  function goTo(row) {
    top = Math.min(Math.max(0, Math.floor(row)), lastTop());
    place();
    draw();
  }

  function select(row, centre) {
    if (!count) return;
    current = Math.min(Math.max(0, row), count - 1);
    const rows = visible();
    if (centre && (current < top || current >= top + rows - 2)) goTo(current - Math.floor(rows / 3));
    else if (current < top) goTo(current);
    else if (current >= top + rows) goTo(current - rows + 1);
    else draw();
  }

  function difference(step) {
    if (!differences.length) return;
    const here = segmentOf(current);
    let found;
    if (step > 0) found = differences.find((number) => number > here || (number === here && starts[number] > current));
    else found = differences.findLast((number) => starts[number] < current);
    if (found === undefined) {
      position.textContent = said = step > 0 ? "no further difference" : "no earlier difference";
      return;
    }
    select(starts[found], true);
  }

  // Whether each point has a text.
  async function findPoints(wanted) {
    const has = (point) => point.some((part) => part.toLowerCase().includes(wanted));
    if (data.points) return data.points.map(has);
    const found = [];
    for (let chunk = 0; document.getElementById(`points-${chunk}`); chunk += 1) {
      position.textContent = said = `looking for ${wanted}`;
      await loadChunk(chunk);
      for (let index = 0; index < chunks[chunk].size; index += 1) found.push(has(chunks[chunk](index)));
    }
    return found;
  }

  async function search(text) {
    const wanted = text.toLowerCase();
    if (!wanted || !count) return;
    const hit = await findPoints(wanted);
    for (let step = 1, segment; step <= count; step += 1) {
      const row = (current + step) % count;
      if (segment === undefined || row < starts[segment] || row >= starts[segment + 1]) segment = segmentOf(row);
      for (let side = 0; side < records.length; side += 1) {
        const index = recordAt(segment, row, side);
        if (index >= 0 && hit[records[side][index]]) {
          select(row, true);
          return;
        }
      }
    }
    position.textContent = said = `${text} isn't in ${pair ? "these traces" : "this trace"}`;
  }

  panes.forEach(({box}, side) => {
    box.setAttribute("aria-rowcount", count);
    box.addEventListener("scroll", () => {
      if (Math.abs(box.scrollTop - put[side]) < 1) return;
      const range = height() - box.clientHeight;
      top = range > 0 ? Math.min(Math.round((box.scrollTop / range) * lastTop()), lastTop()) : 0;
      put[side] = box.scrollTop;
      panes.forEach((other, number) => {
        if (number === side) return;
        other.box.scrollTop = box.scrollTop;
        put[number] = other.box.scrollTop;
      });
      draw();
    });
  });

  const MOVES = {
    ArrowDown: () => select(current + 1), j: () => select(current + 1),
    ArrowUp: () => select(current - 1), k: () => select(current - 1),
    PageDown: () => select(current + visible()), PageUp: () => select(current - visible()),
    Home: () => select(0), End: () => select(count - 1), g: () => select(0), G: () => select(count - 1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, button, select, textarea, summary")) {
      // A button keeps its own keys; the difference keys work from it too.
      if (!event.target.matches("button") || !"np".includes(event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
    }
    if (pair && (event.key === "n" || event.key === "p")) difference(event.key === "n" ? 1 : -1);
    else if (event.key === "/") find.focus();
    else if (event.target.closest(".rows") && Object.hasOwn(MOVES, event.key)) MOVES[event.key]();
    else return;
    event.preventDefault();
    document.getElementById("viewer").scrollIntoView({block: "nearest", behavior: "instant"});
  });
  find.addEventListener("keydown", (event) => {
    if (event.key === "Enter") search(find.value);
    else if (event.key === "Escape") panes[0].box.focus();
    else return;
    event.preventDefault();
  });
  if (pair) {
    document.getElementById("next").addEventListener("click", () => difference(1));
    document.getElementById("previous").addEventListener("click", () => difference(-1));
  }

  function resize() {
    panes.forEach(({height: box}) => {
      box.style.height = `${height()}px`;
    });
    goTo(top);
  }
  new ResizeObserver(resize).observe(panes[0].box);
  resize();
})();

// Tables that are wider than the page say so.
const widths = new ResizeObserver((entries) => {
  entries.forEach(({target: box}) => box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1));
});
function watchWidths(part) {
  part.querySelectorAll(".scroll").forEach((box) => widths.observe(box));
}
watchWidths(document);
