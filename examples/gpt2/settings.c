/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "settings.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int settings_read(settings *s, int argc, char **argv)
{
    *s = (settings){.model = {2, 2, 32, 61, 16}, .steps = 10, .batch = 8, .timeout = 60};
    const struct {
        const char *name;
        int *number;
        const char **text;
    } options[] = {{"--layers", &s->model.layers, NULL},
                   {"--heads", &s->model.heads, NULL},
                   {"--channels", &s->model.channels, NULL},
                   {"--vocabulary", &s->model.vocabulary, NULL},
                   {"--context", &s->model.context, NULL},
                   {"--steps", &s->steps, NULL},
                   {"--batch", &s->batch, NULL},
                   {"--ranks", &s->ranks, NULL},
                   {"--reproducible", &s->reproducible, NULL},
                   {"--timeout", &s->timeout, NULL},
                   {"--quiet", &s->quiet, NULL},
                   {"--save", NULL, &s->save},
                   {"--load", NULL, &s->load},
                   {"--record", NULL, &s->record}};
    const int count = (int)(sizeof options / sizeof options[0]);
    for (int i = 1; i < argc; i += 2) {
        int k = 0;
        while (k < count && strcmp(argv[i], options[k].name) != 0) k++;
        if (k == count || i + 1 == argc) {
            fprintf(stderr, "%s: every option has a value, and these exist:", argv[i]);
            for (k = 0; k < count; k++) fprintf(stderr, " %s", options[k].name);
            fputc('\n', stderr);
            return -1;
        }
        if (options[k].text != NULL)
            *options[k].text = argv[i + 1];
        else
            *options[k].number = atoi(argv[i + 1]);
    }
    const gpt2_config *c = &s->model;
    if (c->layers >= 1 && c->layers <= GPT2_LAYERS_MAX && c->heads >= 1 && c->channels >= 1 &&
        c->channels % c->heads == 0 && c->vocabulary >= 1 && c->context >= 1 && s->steps >= 1 &&
        s->batch >= 1 && s->ranks >= 0 && s->timeout >= 1)
        return 0;
    fprintf(stderr, "these sizes are no model: at most %d layers, heads divide channels\n",
            GPT2_LAYERS_MAX);
    return -1;
}

int settings_read_alone(settings *s, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--ranks") != 0 && strcmp(argv[i], "--reproducible") != 0 &&
            strcmp(argv[i], "--timeout") != 0)
            continue;
        fprintf(stderr, "%s: this program is one process; train_gpt2_ddp has ranks\n", argv[i]);
        return -1;
    }
    return settings_read(s, argc, argv);
}

static double seconds(clockid_t of)
{
    struct timespec t = {0};
    clock_gettime(of, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void stopwatch_begin(stopwatch *watch)
{
    watch->clock = seconds(CLOCK_MONOTONIC);
    watch->processor = seconds(CLOCK_PROCESS_CPUTIME_ID);
}

void stopwatch_print(const stopwatch *watch, int steps)
{
    printf("a step takes %.4f ms, and %.4f ms of processor time\n",
           1e3 * (seconds(CLOCK_MONOTONIC) - watch->clock) / steps,
           1e3 * (seconds(CLOCK_PROCESS_CPUTIME_ID) - watch->processor) / steps);
}
