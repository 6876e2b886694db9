// pg-boss: one queue that notifies, and workers that fetch batches.

import { TEXT, database, load, main, mark, settings } from "./bridge.mjs";

const { PgBoss } = await load("pg-boss");
const { default: pg } = await load("pg");

const QUEUE = "bench";
const UNSETTLED = `SELECT EXISTS (SELECT 1 FROM pgboss.job WHERE name = '${QUEUE}' AND state < 'completed'
                                   AND start_after <= now()) AS found`;

let boss;
let pool;

async function start(options) {
  boss = new PgBoss({ connectionString: database, useListenNotify: true, ...options });
  boss.on("error", console.error);
  await boss.start();
  await boss.createQueue(QUEUE, { notify: true });
}

/** It calls its handler with a batch; ours calls one for each job of it, */
async function singly(jobs) {
  for (const job of jobs) await noop(job.data);
}

async function noop(data) {
  mark(data.n);
}

/** unless chunks are what is measured. */
async function together(jobs) {
  for (const job of jobs) mark(job.data.n);
}

await main({
  async open() {
    await start({ useListenNotify: false, supervise: false, schedule: false });
    pool = new pg.Pool({ connectionString: database, max: 2 });
  },
  async close() {
    await boss.stop({ graceful: false });
    await pool.end();
  },
  enqueue: async (number) => void (await boss.send(QUEUE, { n: number, s: TEXT })),
  enqueueAt: async (number, when) =>
    void (await boss.send(QUEUE, { n: number, s: TEXT }, { startAfter: new Date(when * 1000) })),
  async enqueueMany(start, end) {
    const jobs = [];
    for (let n = start; n < end; n += 1) jobs.push({ data: { n, s: TEXT } });
    await boss.insert(QUEUE, jobs);
  },
  settled: async () => !(await pool.query(UNSETTLED)).rows[0].found,
  async work() {
    await start({});
    process.on("SIGTERM", () => boss.stop({ graceful: false }).then(() => process.exit(0)));
    const { batch, workers } = settings;
    const options = {
      batchSize: batch,
      localConcurrency: workers,
      burstWhenBatchFull: true,
      pollingIntervalSeconds: 0.5,
      notifyPollingIntervalSeconds: 0.5,
    };
    await boss.work(QUEUE, options, settings.together ? together : singly);
  },
});
