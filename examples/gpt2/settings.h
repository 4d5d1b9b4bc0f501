/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the training programs: `--steps 20 --channels 64 --save FILE`. */
#pragma once
#include "gpt2.h"

typedef struct settings {
    gpt2_config model;
    int steps, batch; /* sequences of a step, over all ranks */
    int ranks;        /* processes to start; 0: whoever started this one says which rank it is */
    int reproducible; /* gradients are summed exactly: the same bits on any number of ranks */
    int timeout;      /* seconds that a rank waits for another */
    int quiet;        /* the time of a step instead of its loss */
    const char *save, *load;
    const char *record; /* the run is recorded there; NULL: it is not */
} settings;

/* With quiet: what a step of this process took, by the clock and by its processors. */
typedef struct stopwatch {
    double clock, processor; /* seconds */
} stopwatch;
void stopwatch_begin(stopwatch *watch);
void stopwatch_print(const stopwatch *watch, int steps);

/* 0, or -1 after a line that says what is wrong. */
int settings_read(settings *s, int argc, char **argv);
/* Of a program that is one process: it has no ranks, and nothing to sum over them. */
int settings_read_alone(settings *s, int argc, char **argv);
