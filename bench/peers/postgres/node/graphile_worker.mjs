// graphile-worker: its preset, its runner, its utilities.

import { TEXT, database, load, main, mark, settings } from "./bridge.mjs";

const { Logger, makeWorkerUtils, run } = await load("graphile-worker");
const { default: pg } = await load("pg");

const UNSETTLED = "SELECT EXISTS (SELECT 1 FROM graphile_worker._private_jobs WHERE run_at <= now()) AS found";
const quiet = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

let pool;
let utils;

await main({
  async open() {
    pool = new pg.Pool({ connectionString: database, max: 10 });
    utils = await makeWorkerUtils({ pgPool: pool, logger: quiet });
    await utils.migrate();
  },
  async close() {
    await utils.release();
    await pool.end();
  },
  enqueue: async (number) => void (await utils.addJob("noop", { n: number, s: TEXT })),
  enqueueAt: async (number, when) =>
    void (await utils.addJob("noop", { n: number, s: TEXT }, { runAt: new Date(when * 1000) })),
  async enqueueMany(start, end) {
    const jobs = [];
    for (let n = start; n < end; n += 1) jobs.push({ identifier: "noop", payload: { n, s: TEXT } });
    await utils.addJobs(jobs);
  },
  settled: async () => !(await pool.query(UNSETTLED)).rows[0].found,
  async work() {
    const runner = await run({
      preset: {
        worker: {
          connectionString: database,
          concurrentJobs: 24,
          maxPoolSize: 25,
          localQueue: { size: settings.local },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
      logger: quiet,
      taskList: { noop: async (payload) => mark(payload.n) },
    });
    await runner.promise;
  },
});
