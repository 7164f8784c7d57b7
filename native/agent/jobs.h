/* What files, watches and machine verbs know of jobs beyond agent.h. */
#pragma once
#include "agent.h"

/* job_start with a copy of the request's fields for the body. Fails the slot with ST_TOO_LONG when they are over 16 KiB. */
void job_start_with(struct slot *s, job_body *body, const struct fields *f, bool input, bool output);
/*
 * The same on a thread that is not one of the 16: for bodies that last as long as the host likes. At most 64, then ST_BUSY.
 * Its cancellation can be polled for: see job_cancel_fd.
 */
void job_start_apart(struct slot *s, job_body *body, const struct fields *f, bool output);
/* Readable once the job is cancelled. Only of a job that was started apart. */
int job_cancel_fd(const struct job *j);
/* Fails with the errno's status and text: "cannot <verb> <path>: <text of errno>". */
void job_fail_path(struct job *j, int err, const char *verb, const char *path);
