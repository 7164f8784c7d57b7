// Loaded before each test file over microVMs: what it starts uses the shared home.
import { sharedHome } from './home.js';

process.env.FORKD_HOME = sharedHome();
delete process.env.FORKD_URL;
process.env.NO_COLOR = '1';
