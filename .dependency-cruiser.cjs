/**
 * Who may import whom: cli -> sdk -> api; controller -> engine -> wire; controller -> api. Nothing else, and no cycles.
 * The cli may also read api directly: it is what sdk hands out.
 */
const allowed = {
  api: [],
  wire: [],
  engine: ['wire'],
  controller: ['engine', 'api'],
  sdk: ['api'],
  cli: ['sdk', 'api'],
};
const names = Object.keys(allowed);

module.exports = {
  forbidden: [
    { name: 'no-cycles', severity: 'error', from: {}, to: { circular: true } },
    ...names.map((name) => ({
      name: `${name}-imports-only-${allowed[name].join('-') || 'itself'}`,
      severity: 'error',
      from: { path: `^packages/${name}/src/` },
      to: {
        path: '^packages/',
        pathNot: `^packages/(${[name, ...allowed[name]].join('|')})/`,
      },
    })),
    {
      name: 'only-through-the-front-door',
      comment: 'Another package is used by its name, not by a path into its files.',
      severity: 'error',
      from: { path: '^packages/([^/]+)/' },
      to: {
        path: '^packages/([^/]+)/',
        pathNot: ['^packages/$1/', '^packages/[^/]+/(src|dist)/index\\.[^/]*$'],
      },
    },
    {
      name: 'resolves',
      severity: 'error',
      from: {},
      to: { couldNotResolve: true },
    },
    {
      name: 'no-dev-dependencies-in-the-product',
      severity: 'error',
      from: { path: '^packages/[^/]+/src/', pathNot: '\\.test\\.ts$' },
      to: { dependencyTypes: ['npm-dev'], pathNot: '@types/' },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules|/dist/' },
    exclude: { path: '/dist/.*\\.d\\.ts$' },
    includeOnly: '^(packages|node_modules)/',
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.base.json' },
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'types', 'default'] },
  },
};
