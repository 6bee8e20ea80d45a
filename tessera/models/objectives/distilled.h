// SPDX-License-Identifier: Apache-2.0
// Distillation: an objective that also learns the predictions of another model. Source: Hinton,
// Vinyals, Dean 2015, "Distilling the knowledge in a neural network".
#pragma once

#include <functional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"

namespace tessera::models {

/// The teacher: returns the logits for the samples of a batch without labels, [B, ..., N] on the
/// CPU, any float type. Called in training only, once for every sample that is trained.
using TeacherLogits = std::function<at::Tensor(const nn::Batch& batch)>;

struct DistillWeights {
  double temperature = 2.0;
  double alpha = 0.5;  ///< weight of the teacher's predictions; the labels have the rest
};

/// True for objectives whose logits are those of classes that exclude each other.
bool can_be_distilled(std::string_view objective);

/// The block of an objective that can be distilled, with the same parameters and names. In training
/// its loss is (1 - alpha) x its own terms + alpha x the term "distillation": T^2
/// KL(softmax(teacher / T) || softmax(student / T)), a sum over what has a label (other than -100),
/// whose number is one more denominator. Without training it is the objective itself. Only on ranks
/// that have whole layers and whole samples. Cost: the head's forward and backward once more, and
/// two fp32 tensors of the size of the logits for the samples that the objective takes at a time.
/// If the models have different numbers of logits, those beyond the smaller number are dropped.
/// Throws Error{Shape} in forward() if the teacher's logits have other dimensions.
nn::BlockSpec distilled(nn::BlockSpec objective, TeacherLogits teacher, DistillWeights weights);

}  // namespace tessera::models
