/* SPDX-License-Identifier: Apache-2.0 */
#include "classifier.h"

#include <math.h>
#include <string.h>

double *classifier_parameter(classifier *c, size_t i, size_t *count, const char **name)
{
    switch (i) {
    case 0:
        *count = HIDDEN * INPUTS, *name = "layer1.weight";
        return c->weight1;
    case 1:
        *count = HIDDEN, *name = "layer1.bias";
        return c->bias1;
    case 2:
        *count = CLASSES * HIDDEN, *name = "layer2.weight";
        return c->weight2;
    default:
        *count = CLASSES, *name = "layer2.bias";
        return c->bias2;
    }
}

/* A number in [-1, 1) that depends on nothing but its arguments. */
static double uniform(unsigned seed, unsigned k)
{
    unsigned x = seed * 2654435761u ^ (k + 1) * 2246822519u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13, x *= 3266489917u, x ^= x >> 16;
    return (double)x / 2147483648.0 - 1.0;
}

void classifier_init(classifier *c, unsigned seed)
{
    for (size_t i = 0; i < PARAMETERS; i++) {
        size_t count;
        const char *name;
        double *p = classifier_parameter(c, i, &count, &name);
        for (size_t k = 0; k < count; k++)
            p[k] = i % 2 == 0 ? uniform(seed + (unsigned)i, (unsigned)k) : 0.0;
    }
}

/* Label 1 inside a circle. */
sample sample_make(unsigned step, unsigned k)
{
    sample s = {.x = {uniform(step + 100, 2 * k), uniform(step + 100, 2 * k + 1)}};
    s.label = s.x[0] * s.x[0] + s.x[1] * s.x[1] < 0.6;
    return s;
}

static void forward(const classifier *c, const double *x, double *hidden, double *probability)
{
    double logit[CLASSES], top, sum = 0;
    for (int j = 0; j < HIDDEN; j++)
        hidden[j] =
            tanh(c->weight1[j * INPUTS] * x[0] + c->weight1[j * INPUTS + 1] * x[1] + c->bias1[j]);
    for (int k = 0; k < CLASSES; k++) {
        logit[k] = c->bias2[k];
        for (int j = 0; j < HIDDEN; j++) logit[k] += c->weight2[k * HIDDEN + j] * hidden[j];
    }
    top = logit[0] > logit[1] ? logit[0] : logit[1];
    for (int k = 0; k < CLASSES; k++) sum += probability[k] = exp(logit[k] - top);
    for (int k = 0; k < CLASSES; k++) probability[k] /= sum;
}

double classifier_loss_and_gradients(classifier *c, const share *s, double *const g[PARAMETERS])
{
    static double hidden[BATCH][HIDDEN];
    double slope[BATCH][CLASSES], loss = 0;
    sample samples[BATCH];
    int n = 0;
    for (unsigned k = s->first; k < BATCH; k += s->stride, n++) {
        samples[n] = sample_make(s->step, k);
        forward(c, samples[n].x, hidden[n], slope[n]);
        loss -= log(slope[n][samples[n].label]);
    }
    memset(g[2], 0, sizeof c->weight2), memset(g[3], 0, sizeof c->bias2);
    for (int m = 0; m < n; m++)
        for (int k = 0; k < CLASSES; k++) {
            slope[m][k] = (slope[m][k] - (samples[m].label == k)) / n;
            g[3][k] += slope[m][k];
            for (int j = 0; j < HIDDEN; j++) g[2][k * HIDDEN + j] += slope[m][k] * hidden[m][j];
        }
    /* layer 2 is done: it can be reduced now */
    if (s->ready != NULL) s->ready(s->context, 3), s->ready(s->context, 2);
    memset(g[0], 0, sizeof c->weight1), memset(g[1], 0, sizeof c->bias1);
    for (int m = 0; m < n; m++)
        for (int j = 0; j < HIDDEN; j++) {
            double back = 0;
            for (int k = 0; k < CLASSES; k++) back += slope[m][k] * c->weight2[k * HIDDEN + j];
            back *= 1 - hidden[m][j] * hidden[m][j];
            g[1][j] += back;
            for (int i = 0; i < INPUTS; i++) g[0][j * INPUTS + i] += back * samples[m].x[i];
        }
    if (s->ready != NULL) s->ready(s->context, 1), s->ready(s->context, 0);
    return loss / n;
}

double classifier_accuracy(classifier *c)
{
    double hidden[HIDDEN], probability[CLASSES];
    int right = 0;
    for (unsigned k = 0; k < 1000; k++) {
        sample s = sample_make(9999, k);
        forward(c, s.x, hidden, probability);
        right += (probability[1] > probability[0]) == s.label;
    }
    return right / 1000.0;
}
