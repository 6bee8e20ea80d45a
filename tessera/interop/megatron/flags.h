// SPDX-License-Identifier: Apache-2.0
// Flags of Megatron-LM that set more than one key.
#pragma once

#include <string>
#include <string_view>

#include "tessera/interop/foreign_flags.h"

namespace tessera::interop {

/// Adds a parameter of Megatron-LM's schedule, and selects this schedule (scheduler.type Megatron);
/// the value is a number or a word.
void add_megatron_rate(const std::string& typed,
                       std::string_view parameter,
                       const std::string& value,
                       ForeignFlags& out);

/// Adds --split 949,50,1: shares of training, validation and test data. The test data is left out,
/// with a note. Throws Error{Config} unless the value is at most three numbers.
void add_split(const std::string& typed, const std::string& value, ForeignFlags& out);

/// Adds --moe-token-drop-policy probs or position. Throws Error{Config} for another word.
void add_drop_policy(const std::string& typed, const std::string& value, ForeignFlags& out);

/// Reads --moe-router-load-balancing-type: aux_loss is the loss whose coefficient
/// --moe-aux-loss-coeff gives, and none removes it. Throws Error{Unsupported} with the alternative
/// for the others.
void add_balancing(const std::string& typed, const std::string& value, ForeignFlags& out);

}  // namespace tessera::interop
