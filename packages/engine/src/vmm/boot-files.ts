/** Names of links in the directory of a machine that boots. */
export const bootFiles = { kernel: 'kernel', initrd: 'initrd', image: 'image' } as const;
