// SPDX-License-Identifier: Apache-2.0
// Updates by rules that treat every element independently, such as AdamW.
#include "tessera/parallel/update_strategy.h"

namespace tessera::parallel {
namespace {

class ElementwiseUpdate final : public UpdateStrategy {
 public:
  explicit ElementwiseUpdate(const UpdateContext& context) : context_(context) {}

  void update(ShardStore& store,
              GradientReduction& gradients,
              const optim::UpdateScalars& scalars) override {
    update_shards(context_, store, gradients, scalars);
  }

  static std::unique_ptr<UpdateStrategy> make(const UpdateContext& context) {
    return std::make_unique<ElementwiseUpdate>(context);
  }

 private:
  UpdateContext context_;
};

const bool kRegistered = register_update(UpdateKind::Elementwise, ElementwiseUpdate::make, nullptr);

}  // namespace
}  // namespace tessera::parallel
