// SPDX-License-Identifier: Apache-2.0
// The parameters of low-rank adapters, by their names.
#pragma once

#include <string>

#include "tessera/tensor/param.h"

namespace tessera::nn {

/// The names of A and B of the adapter of a module that is a matrix.
std::string low_rank_a(const std::string& module);
std::string low_rank_b(const std::string& module);

/// False while a WithoutAdapters (low_rank.h) exists on this thread.
bool computes_adapters();

/// Returns whether a parameter is A, B or a magnitude of an adapter that add_low_rank() or one of
/// its siblings in low_rank.h declared.
bool is_low_rank(const ParamInfo& info);

}  // namespace tessera::nn
