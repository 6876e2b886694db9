// A complete pull worker in JavaScript (Node 18 or newer, no packages): node worker.js
//
// It claims jobs with POST /v1/leases, runs a handler for each, and reports with POST /v1/leases:report.
// Settings: MAINSPRING_URL (default http://127.0.0.1:8340), MAINSPRING_TOKEN, MAINSPRING_CONCURRENCY (default 4).

import { randomBytes, randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { pathToFileURL } from "node:url";

const URL_OF_SERVICE = process.env.MAINSPRING_URL ?? "http://127.0.0.1:8340";
const TOKEN = process.env.MAINSPRING_TOKEN;
const CONCURRENCY = Number(process.env.MAINSPRING_CONCURRENCY ?? 4);
const WORKER = `js-${hostname()}-${process.pid}-${randomBytes(3).toString("hex")}`;
const WAIT = 20; // seconds that a claim waits for a job

// The handlers, by the name of their task. `context.signal` is aborted when the job is cancelled or lost, `context.job`
// has all fields of the lease, such as `headers`, and `context.step` does each part of the work once, over all attempts.
export const handlers = {
  async resize(payload, context) {
    for (let step = 1; step <= 4; step += 1) {
      await context.progress(step / 4, `${payload.photo}: size ${step} of 4`);
      context.signal.throwIfAborted();
    }
    return { photo: payload.photo, sizes: 4 };
  },
};

// A failure that must not be retried: throw new Rejected("no such photo").
export class Rejected extends Error {}

// "Later, please": throw new Snooze(60) runs the job again in a minute, without using an attempt.
export class Snooze extends Error {
  constructor(seconds, reason = "") {
    super(reason || `snoozed for ${seconds} s`);
    this.seconds = seconds;
  }
}

const held = new Map(); // job id -> { token, controller }
let stopping = false;
let lease = 30; // seconds; the service tells

async function call(path, text, seconds = 30, more = {}) {
  const headers = { "content-type": "application/json", ...more };
  if (TOKEN) headers.authorization = `Bearer ${TOKEN}`;
  const response = await fetch(`${URL_OF_SERVICE}${path}`, {
    method: "POST",
    headers,
    body: text,
    signal: AbortSignal.timeout(seconds * 1000),
  });
  const answer = await response.json();
  if (response.ok) return answer;
  const error = new Error(`${path}: ${answer.detail ?? response.status}`);
  error.permanent = response.status >= 400 && response.status < 500 && response.status !== 429;
  throw error;
}

// Outages of the service and of its store end some day: repeat, a little later each time. A report that the service
// refuses is not repeated.
async function insist(path, body) {
  const text = JSON.stringify(body);
  for (let pause = 0.5; ; pause = Math.min(pause * 2, 10)) {
    try {
      return await call(path, text);
    } catch (error) {
      if (error.permanent) throw error;
      console.error(`${error.message}; trying again in ${pause} s`);
      await sleep(pause);
    }
  }
}

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

function heed(pulse) {
  lease = pulse.lease;
  if (pulse.order === "terminate" && !stopping) stop("an operator");
  const gone = pulse.known ? [...Object.keys(pulse.cancelled), ...pulse.lost] : [...held.keys()];
  for (const id of gone) held.get(id)?.controller.abort(new Error("the job was cancelled, or is another worker's now"));
}

async function report(job, news) {
  const { replies, pulse } = await insist("/v1/leases:report", {
    worker: WORKER,
    items: [{ id: job.id, token: job.token, ...news }],
  });
  heed(pulse);
  const [reply] = replies;
  if (reply.reply === "stale" || reply.reply === "cancelled") held.get(job.id)?.controller.abort(new Error(reply.message));
  if (reply.reply === "invalid") throw new Rejected(reply.message);
  return reply;
}

async function run(job) {
  const controller = new AbortController();
  held.set(job.id, { token: job.token, controller });
  const context = {
    job,
    signal: controller.signal,
    progress: (fraction, note = "") => report(job, { progress: { fraction, note } }),
    // step(name, work): the output of the step. An earlier attempt may have done it; then `work` is not called again.
    step: async (name, work) => {
      const before = job.steps.find((step) => step.name === name && step.state === "done");
      if (before) return before.output;
      const output = (await work()) ?? null;
      await report(job, { step: { name, output } });
      controller.signal.throwIfAborted();
      return output;
    },
  };
  try {
    const result = await handlers[job.task](job.payload, context);
    await report(job, { done: { result: result ?? null } });
  } catch (error) {
    await report(job, ending(error, controller.signal)).catch((refused) => giveUp(job, refused));
  } finally {
    held.delete(job.id);
  }
}

function ending(error, signal) {
  if (signal.aborted) return { cancelled: { reason: "stopped by the worker" } };
  if (error instanceof Snooze) return { snooze: { delay: error.seconds, reason: error.message } };
  const { name, message, stack } = error instanceof Error ? error : new Error(String(error));
  const failed = { type: excerpt(name, 200) || "Error", message: excerpt(message), traceback: excerpt(stack ?? "") };
  return { failed: { ...failed, retry: !(error instanceof Rejected) } };
}

// The service refuses longer texts, and halves of surrogate pairs.
const excerpt = (text, length = 40_000) => String(text).slice(0, length).replace(/\p{Surrogate}/gu, "\ufffd");

// A job whose end was refused must not stay running.
async function giveUp(job, refused) {
  console.error(refused.message);
  const failed = { type: "Error", message: "its error could not be reported" };
  await report(job, { failed }).catch((again) => console.error(again.message));
}

// While jobs run, the worker must be heard of at least once per lease.
async function beat() {
  while (!stopping || held.size > 0) {
    await sleep(lease / 4);
    const items = [...held].map(([id, { token }]) => ({ id, token }));
    if (items.length > 0) {
      await call("/v1/leases:report", JSON.stringify({ worker: WORKER, items })).then(
        (answer) => heed(answer.pulse),
        (error) => console.error(error.message),
      );
    }
  }
}

function stop(why) {
  if (stopping) process.exit(1);
  console.error(`${WORKER} stops (${why}); ${held.size} jobs in hand`);
  stopping = true;
}

export async function main() {
  process.on("SIGTERM", () => stop("SIGTERM"));
  process.on("SIGINT", () => stop("SIGINT"));
  console.error(`${WORKER} works for ${URL_OF_SERVICE}: ${Object.keys(handlers).join(", ")}`);
  const beating = beat();
  let claim; // the service may have claimed jobs although its answer was lost: with the same key, they come again
  while (!stopping) {
    const room = CONCURRENCY - held.size;
    if (room === 0) {
      await sleep(0.05);
      continue;
    }
    const tokens = Object.fromEntries([...held].map(([id, { token }]) => [id, token]));
    const wanted = { worker: WORKER, tasks: Object.keys(handlers), limit: room, wait: stopping ? 0 : WAIT, held: tokens };
    claim ??= { text: JSON.stringify(wanted), headers: { "idempotency-key": randomUUID() } };
    try {
      const { jobs, pulse } = await call("/v1/leases", claim.text, WAIT + 15, claim.headers);
      claim = undefined;
      heed(pulse);
      if (pulse.order !== null && jobs.length === 0) await sleep(1);
      for (const job of jobs) run(job);
    } catch (error) {
      console.error(error.message);
      if (error.permanent) process.exit(1);
      await sleep(1);
    }
  }
  await beating;
  await insist("/v1/leases:leave", { worker: WORKER });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) await main();
