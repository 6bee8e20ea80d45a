// SPDX-License-Identifier: Apache-2.0
// Rewards, values and advantages of the completions of a rollout: this converts them between the
// tensors that the update reads and the entries of the ledger.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/estimators.h"
#include "tessera/rlhf/ledger.h"

// Legend: B completions, T columns.
namespace tessera::rlhf {

/// Returns the rewards and the values of the tokens of completion number `b`; `learned` and
/// `kl_coefficient` keep their defaults.
Worth worth_of(const Scored& scored, const Advantages& made, std::int64_t b);

/// Sets rewards, log-probabilities, values and advantages to those of `worths`, which has one entry
/// for each of `rows`. Returns false if some entries lack a list that others have.
bool take_over(const std::vector<Worth>& worths,
               const Rows& rows,
               Scored& scored,
               Advantages& made);

/// Returns a sentence with its remedy if no completion has a reward, or if all of them are left out
/// of the loss. `labels_BT`: the labels that are learned, negative elsewhere.
std::optional<std::string> complaint_of_dropped(const Scored& scored, const at::Tensor& labels_BT);

}  // namespace tessera::rlhf
