// SPDX-License-Identifier: Apache-2.0
// The facts that decide the result of a training, and must therefore be equal on all of its hosts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/engine/resume.h"
#include "tessera/hosts/fact.h"

namespace tessera::planner {
class Plan;
class PlanWithData;
}  // namespace tessera::planner

namespace tessera::engine {

/// Returns the facts that are known without reading more files: every key of the configuration, the
/// tokenizer, the samples of all sets of data, and the step from which the training goes on.
std::vector<hosts::Fact> known_facts(const planner::PlanWithData& plan,
                                     const data::Datasets& data,
                                     const ResumePoint& resume);
/// Returns the facts whose values are hashes of files: models and programs (Plan::inputs), files
/// that other keys name, and files from which samples are read later (Dataset::files()). Reads all
/// of them, and calls `alive` meanwhile. Throws Error{Io} for one that cannot be read.
std::vector<hosts::Fact> contents_facts(const planner::Plan& plan,
                                        const data::Datasets& data,
                                        const std::function<void()>& alive);
/// Returns both, of which no more than fit into a message.
std::vector<hosts::Fact> facts_of(const planner::PlanWithData& plan,
                                  const data::Datasets& data,
                                  const ResumePoint& resume,
                                  const std::function<void()>& alive);

}  // namespace tessera::engine
