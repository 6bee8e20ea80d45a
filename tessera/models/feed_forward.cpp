// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/feed_forward.h"

#include "tessera/models/experts.h"
#include "tessera/models/mlp.h"

namespace tessera::models {
namespace {

std::unique_ptr<FeedForward> made(const MlpSpec& spec) {
  return std::make_unique<Mlp>(spec);
}

std::unique_ptr<FeedForward> made(const ExpertsSpec& spec) {
  return std::make_unique<Experts>(spec);
}

}  // namespace

FeedForward::Size size_of(const FeedForwardSpec& spec) {
  return std::visit([](const auto& one) { return size_of(one); }, spec);
}

std::unique_ptr<FeedForward> make_feed_forward(const FeedForwardSpec& spec) {
  return std::visit([](const auto& one) { return made(one); }, spec);
}

}  // namespace tessera::models
