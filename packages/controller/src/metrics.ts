/** Numbers for Prometheus. */
import { sandboxStates } from '@forkd/api';
import type { StandbyReport } from '@forkd/engine';
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { Sandboxes } from './sandboxes.js';

export interface Metrics {
  /** Text format of all numbers. */
  text(): Promise<{ type: string; body: string }>;
  forked(outcome: 'ok' | 'failed', seconds: number): void;
  answered(method: string, route: string, status: number, seconds: number): void;
}

/** @param sources What is asked when the numbers are read. */
export function createMetrics(sources: {
  sandboxes: () => Sandboxes;
  builds: () => number;
  standby: () => StandbyReport;
}): Metrics {
  const register = new Registry();
  const registers = [register];
  new Gauge({
    name: 'forkd_sandboxes',
    help: 'Sandboxes by state.',
    labelNames: ['state'],
    registers,
    collect() {
      const counts = sources.sandboxes().counts();
      for (const state of sandboxStates) this.set({ state }, counts[state]);
    },
  });
  new Gauge({
    name: 'forkd_builds',
    help: 'Builds of templates that run.',
    registers,
    collect() {
      this.set(sources.builds());
    },
  });
  new Gauge({
    name: 'forkd_standby',
    help: 'VMMs and children made ahead of demand: waiting now, forks that found one, forks that did not.',
    labelNames: ['kind', 'what'],
    registers,
    collect() {
      for (const [kind, counts] of Object.entries(sources.standby()))
        for (const [what, count] of Object.entries<number>(counts)) this.set({ kind, what }, count);
    },
  });
  const forks = new Counter({
    name: 'forkd_forks_total',
    help: 'Children that were asked for.',
    labelNames: ['outcome'],
    registers,
  });
  const forkSeconds = new Histogram({
    name: 'forkd_fork_seconds',
    help: 'From the start of a child until it knows who it is.',
    buckets: [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
    registers,
  });
  const requests = new Histogram({
    name: 'forkd_http_request_seconds',
    help: 'Requests by route.',
    labelNames: ['method', 'route', 'status'],
    buckets: [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60],
    registers,
  });
  return {
    text: async () => ({ type: register.contentType, body: await register.metrics() }),
    forked(outcome, seconds) {
      forks.inc({ outcome });
      if (outcome === 'ok') forkSeconds.observe(seconds);
    },
    answered(method, route, status, seconds) {
      requests.observe({ method, route, status: String(status) }, seconds);
    },
  };
}
