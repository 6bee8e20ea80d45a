// SPDX-License-Identifier: Apache-2.0
// The engines that can move bytes between hosts, which run.transport names.
#pragma once

#include <array>
#include <cstdint>

#include "tessera/config/choices.h"

namespace tessera::comm {

enum class LinkEngine : std::uint8_t { Auto, Gloo, Mpi, Ucx };
inline constexpr auto kLinkEngines =
    std::to_array<config::Named<LinkEngine>>({{LinkEngine::Auto, "auto"},
                                              {LinkEngine::Gloo, "gloo"},
                                              {LinkEngine::Mpi, "mpi"},
                                              {LinkEngine::Ucx, "ucx"}});

}  // namespace tessera::comm
