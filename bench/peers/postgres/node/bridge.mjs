// What the peers that are written for Node share: the same marks as bench/tally.py, and a conversation with the
// measuring process, one JSON object per line. The loops that are timed run here, not there.

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

export const TEXT = "a small payload, as most are: an id or two";
export const database = process.env.BENCH_DATABASE;
export const settings = JSON.parse(process.env.BENCH_SETTINGS || "{}");

const MOST_JOBS = 2_000_000;
const [WIDTH, HEADER] = [8, 3]; // count, first, last; then the lags

/** A package of the peer's own environment. */
export async function load(name) {
  const require = createRequire(path.join(process.env.BENCH_PACKAGES, "package.json"));
  return import(pathToFileURL(require.resolve(name)).href);
}

/** Nanoseconds since 1970, as a number: exact to a quarter of a microsecond. */
export function now() {
  return (performance.timeOrigin + performance.now()) * 1e6;
}

// -- marks -------------------------------------------------------------------------------------
const place = process.env.BENCH_PLACE;
const samples = Number(process.env.BENCH_SAMPLES || "0");
const header = Buffer.alloc(HEADER * WIDTH);
let file;
let count = 0;
let waiting = false;

/** One job starts. The count reaches the file once per turn of the event loop. */
export function mark(number) {
  file ??= join();
  const at = now();
  if (count < samples) {
    const lag = Buffer.alloc(WIDTH);
    lag.writeBigInt64LE(BigInt(Math.round(at - number)));
    fs.writeSync(file, lag, 0, WIDTH, (HEADER + count) * WIDTH);
  }
  count += 1;
  if (!waiting) {
    waiting = true;
    setImmediate(write);
  }
}

function write() {
  waiting = false;
  header.writeBigInt64LE(BigInt(count), 0);
  header.writeBigInt64LE(BigInt(Math.round(now())), 2 * WIDTH);
  fs.writeSync(file, header, 0, header.length, 0);
}

function join() {
  const opened = fs.openSync(path.join(place, `tally-${process.pid}`), "w+");
  fs.ftruncateSync(opened, (HEADER + samples) * WIDTH);
  const workers = Number(process.env.BENCH_WORKERS || "1");
  const clock = new Int32Array(new SharedArrayBuffer(4));
  const deadline = Date.now() + 60_000;
  while (fs.readdirSync(place).filter((name) => name.startsWith("tally-")).length < workers && Date.now() < deadline) {
    Atomics.wait(clock, 0, 0, 1);
  }
  header.writeBigInt64LE(BigInt(Math.round(now())), WIDTH);
  return opened;
}

// -- the conversation -----------------------------------------------------------------------------
/** Serve a peer that has open, close, enqueue, enqueueMany, enqueueAt, settled; or be its worker. */
export async function main(peer) {
  if (process.argv[2] === "work") {
    await peer.work();
    return;
  }
  const calls = { ...peer, enqueueNow: () => peer.enqueue(now()), ...loops(peer) };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { call, values } = JSON.parse(line);
    let answer;
    try {
      answer = { value: (await calls[call](...values)) ?? null };
    } catch (error) {
      answer = { error: String(error?.stack ?? error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
    if (call === "close") process.exit(0);
  }
}

function loops(peer) {
  return {
    async enqueueFor(seconds, tasks) {
      const begin = performance.now();
      let number = 0;
      const one = async () => {
        while (performance.now() < begin + seconds * 1000 && number < MOST_JOBS) await peer.enqueue((number += 1));
      };
      await Promise.all(Array.from({ length: tasks }, one));
      return (number * 1000) / (performance.now() - begin);
    },
    async enqueueManyFor(seconds, batch) {
      const begin = performance.now();
      let jobs = 0;
      while (performance.now() < begin + seconds * 1000 && jobs < MOST_JOBS) {
        await peer.enqueueMany(0, batch);
        jobs += batch;
      }
      return (jobs * 1000) / (performance.now() - begin);
    },
  };
}
