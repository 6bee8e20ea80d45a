// SPDX-License-Identifier: Apache-2.0
// The trust ratio of LAMB.
#pragma once

namespace tessera::optim {

/// Returns |weights| / |update|, clamped to [least, most]; 1 if one of the norms is 0. Source: You
/// et al. 2020 (LAMB).
double lamb_trust_ratio(double weight_norm, double update_norm, double least, double most);

}  // namespace tessera::optim
