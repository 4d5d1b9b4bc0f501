/* SPDX-License-Identifier: Apache-2.0 */
/* The classifier, trained by one process on the whole batch. train_ddp.c is the same program on W
** ranks; both print the same. */
#include "classifier.h"

#include <stdio.h>

int main(void)
{
    classifier model, gradient;
    double *g[PARAMETERS];
    size_t count;
    const char *name;
    classifier_init(&model, 1);
    for (size_t i = 0; i < PARAMETERS; i++)
        g[i] = classifier_parameter(&gradient, i, &count, &name);
    for (unsigned step = 0; step < STEPS; step++) {
        const share whole = {.step = step, .first = 0, .stride = 1};
        double loss = classifier_loss_and_gradients(&model, &whole, g);
        for (size_t i = 0; i < PARAMETERS; i++) {
            double *p = classifier_parameter(&model, i, &count, &name);
            for (size_t k = 0; k < count; k++) p[k] -= 0.5 * g[i][k];
        }
        if (step % 200 == 199) printf("step %3u  loss %.9f\n", step + 1, loss);
    }
    printf("accuracy %.3f  layer1.weight[0] %.9f  layer2.bias[0] %.9f\n",
           classifier_accuracy(&model), model.weight1[0], model.bias2[0]);
    return 0;
}
