/* SPDX-License-Identifier: Apache-2.0 */
/* A small classifier in plain C: two inputs, one hidden layer, two classes; and data it can learn.
**
** The two training programs share it: train_single.c steps on the whole batch, train_ddp.c on a
** share of it per rank.
*/
#pragma once
#include <stddef.h>

enum { INPUTS = 2, HIDDEN = 16, CLASSES = 2, PARAMETERS = 4, BATCH = 48, STEPS = 800 };

typedef struct classifier {
    double weight1[HIDDEN * INPUTS], bias1[HIDDEN];
    double weight2[CLASSES * HIDDEN], bias2[CLASSES];
} classifier;

/* Parameter i of a classifier (or of its gradients, which have the same shape): where it is, how
** long, its name. */
double *classifier_parameter(classifier *c, size_t i, size_t *count, const char **name);
void classifier_init(classifier *c, unsigned seed);

/* The batch of one step: sample k of a step is the same on every rank. */
typedef struct sample {
    double x[INPUTS];
    int label;
} sample;
sample sample_make(unsigned step, unsigned k);

/* Mean loss over samples first, first + stride, … of the step's batch. Backward calls
** ready(context, i) as soon as gradient i is complete, last layer first, so that a data-parallel
** program can start to communicate. */
typedef struct share {
    unsigned step, first, stride;
    void *context;
    void (*ready)(void *context, size_t parameter); /* may be NULL */
} share;
double classifier_loss_and_gradients(classifier *c, const share *s,
                                     double *const gradients[PARAMETERS]);
/* Fraction of 1000 fresh samples that it gets right. */
double classifier_accuracy(classifier *c);
