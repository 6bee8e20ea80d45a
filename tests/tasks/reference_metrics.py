#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes reference_metrics.json: metrics of fixed predictions as scikit-learn 1.9.1 and scipy 1.17.1 give them.
usage: pip install scikit-learn==1.9.1 && python3 tests/tasks/reference_metrics.py > tests/tasks/reference_metrics.json"""
import json
import random
import warnings

import numpy as np
from scipy import stats
from sklearn import metrics as m

warnings.simplefilter("ignore")
random.seed(7)


def logits(rows, width, step=0.25):
    return [[step * random.randint(-8, 8) for _ in range(width)] for _ in range(rows)]  # many ties


def softmax(values):
    e = np.exp(np.array(values) - np.max(values, axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def classes(rows, width, absent=()):
    known = [c for c in range(width) if c not in absent]
    values, labels = logits(rows, width), [random.choice(known) for _ in range(rows)]
    said = np.argmax(values, axis=1)
    each = m.precision_recall_fscore_support(labels, said, labels=range(width), zero_division=0)
    out = {"width": width, "values": values, "labels": labels, "accuracy": m.accuracy_score(labels, said),
           "precision": each[0].tolist(), "recall": each[1].tolist(), "f1": each[2].tolist(),
           "support": each[3].tolist(), "matthews": m.matthews_corrcoef(labels, said),
           "confusion": m.confusion_matrix(labels, said, labels=range(width)).ravel().tolist()}
    for average in ("macro", "weighted"):
        out[average] = list(m.precision_recall_fscore_support(labels, said, average=average, zero_division=0)[:3])
    if not absent:
        scores = softmax(values)
        # The distance of two logits orders rows as their probabilities do.
        out["auc"] = (m.roc_auc_score(labels, [b - a for a, b in values]) if width == 2 else
                      m.roc_auc_score(labels, scores, multi_class="ovr", average="macro"))
    return out


def flags(rows, width):
    values = logits(rows, width)
    labels = [[random.randint(0, 1) for _ in range(width)] for _ in range(rows)]
    said = (np.array(values) > 0).astype(int)
    return {"width": width, "values": values, "labels": labels, "accuracy": m.accuracy_score(labels, said),
            "f1_micro": m.f1_score(labels, said, average="micro"), "f1_macro": m.f1_score(labels, said, average="macro"),
            "auc": m.roc_auc_score(labels, values, average="macro")}


def numbers(rows):
    labels = [0.5 * random.randint(0, 10) for _ in range(rows)]
    values = [y + 0.25 * random.randint(-6, 6) for y in labels]
    return {"values": values, "labels": labels, "mae": m.mean_absolute_error(labels, values),
            "r2": m.r2_score(labels, values), "pearson": float(stats.pearsonr(values, labels)[0]),
            "spearman": float(stats.spearmanr(values, labels)[0])}


print(json.dumps({"classes": [classes(40, 2), classes(60, 4), classes(50, 5, absent=(3,)), classes(3, 2, absent=(0,))],
                  "flags": [flags(40, 3)], "numbers": [numbers(50), numbers(7)]}))
