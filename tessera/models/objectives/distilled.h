// SPDX-License-Identifier: Apache-2.0
// Distillation: an objective that also learns the predictions of another model. Source: Hinton,
// Vinyals, Dean 2015, "Distilling the knowledge in a neural network".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/models/family.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// The teacher: returns the logits for the samples of a batch without labels, [B, ..., N] on the
/// CPU, any float type. Called in training only, once for every sample that is trained.
using TeacherLogits = std::function<at::Tensor(const nn::Batch& batch)>;

struct DistillWeights {
  double temperature = 2.0;
  double alpha = 0.5;  ///< weight of the teacher's predictions
  /// Weight of the labels; absent: 1 - alpha.
  std::optional<double> label_weight = {};
};

/// The logits of an objective: those of classes that exclude each other, of classes each of which
/// applies or does not (flags), or predicted numbers.
enum class Predictions : std::uint8_t { Classes, Flags, Numbers };

/// The predictions of an objective that a teacher can teach.
struct DistillForm {
  Predictions predictions = Predictions::Classes;
  /// The logits of one of several label heads, which are classes.
  struct Head {
    std::string name;
    std::int64_t first = 0, size = 0;
    double weight = 1.0;  ///< of the head's loss
  };
  std::vector<Head> heads;  ///< empty: all logits belong together
};

/// The form of an objective; nothing if a teacher has no meaning for it.
std::optional<DistillForm> distill_form(const ObjectiveChoice& objective);

/// The block of an objective that can be distilled, with the same parameters and names. In training
/// its loss is label_weight x its own terms + alpha x the term "distillation". The term is
/// - for classes, T^2 KL(softmax(teacher / T) || softmax(student / T)), the mean over everything
///   that has a label (other than -100); several label heads have a term each,
///   "topic_distillation";
/// - for flags, T^2 times the sum over both outcomes of the same divergence of sigmoid(logit / T),
///   the mean over all flags;
/// - for numbers, the squared difference of the two models, the mean over all numbers; T is not
///   used.
///
/// The counts of these terms are further denominators. Outside of training the block is the
/// objective itself. Ranks that share layers compute the term from the logits of all classes; ranks
/// that share the tokens of a sample ask the teacher for all of it and use their own tokens. Cost:
/// the head's forward and backward once more, and two fp32 tensors of the size of the logits of all
/// classes for the samples that the objective takes at a time. If the models have different numbers
/// of classes, those beyond the smaller number are dropped; the numbers of heads, flags and
/// predicted numbers must be equal. Throws Error{Shape} in forward() if the teacher's logits have
/// other dimensions.
nn::BlockSpec distilled(nn::BlockSpec objective,
                        TeacherLogits teacher,
                        DistillWeights weights,
                        DistillForm form = {});

}  // namespace tessera::models
