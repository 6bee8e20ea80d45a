// SPDX-License-Identifier: Apache-2.0
// A training in three steps from one configuration: supervised fine-tuning, a reward model, and
// reinforcement learning.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <string>

#include "tessera/config/json.h"

namespace tessera::rlhf {

struct RlhfStep {
  const char* name;    ///< its section in the configuration
  const char* task;    ///< unless the section names another
  const char* folder;  ///< of its run, below "dir"
};
constexpr std::array<RlhfStep, 3> kRlhfSteps = {
    {{"sft", "sft", "1-sft"}, {"reward", "reward", "2-reward"}, {"rl", "rl", "3-rl"}}};

/// Returns the value at a path of keys; nullptr if there is none.
const json::Value* find_in(const json::Value& source, std::initializer_list<const char*> path);

/// Throws Error{Config}, with the place, unless the configuration has the keys "dir", a section for
/// each step, and otherwise only "common", "split" and "sft_only". `name` stands for the file.
void check_steps(const json::Value& source, const std::string& name);

/// Lets each step that names no records of its own train on its part of the common ones, in the
/// proportions of "split", if it is given. The parts are written into `folder`. Throws the errors
/// of write_parts(), and Error{Config} for a "split" that is not one number for each step, or that
/// leaves a step without records.
void divide_records(json::Value& source, const std::filesystem::path& folder);

/// Returns the configuration with which step `number` (from 0) is trained: the common keys, its own
/// keys, and those that follow from the earlier steps, whose runs it names. Call it after
/// check_steps().
json::Value config_of_step(const json::Value& source, std::size_t number);

}  // namespace tessera::rlhf
