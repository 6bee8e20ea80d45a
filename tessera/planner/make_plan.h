// SPDX-License-Identifier: Apache-2.0
// Makes a plan from a configuration.
#pragma once

#include <string>

#include "tessera/config/json.h"
#include "tessera/planner/plan.h"

namespace tessera::nn {
struct Model;
}

namespace tessera::planner {

/// Reads and checks a whole configuration for `ranks` ranks and throws all problems together as one
/// Error{Config}. Does not open data. A resolved configuration gives the same plan again, also for
/// another number of ranks: values listed in run.derived are derived again, except for a
/// micro-batch size that still divides the batch. Changes of that kind are noted.
Plan make_plan(const json::Value& source, int ranks, const std::string& name_of_file);
/// The same for a program's own model instead of the section `model`: its blocks are sharded,
/// recomputed, kept in 16 bits and saved as configured. Memory for its activations is predicted
/// once the data is open.
Plan make_plan(const json::Value& source,
               int ranks,
               const std::string& name_of_file,
               const nn::Model& model);

}  // namespace tessera::planner
