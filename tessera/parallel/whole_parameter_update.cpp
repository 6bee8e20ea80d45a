// SPDX-License-Identifier: Apache-2.0
// Updates by rules that need norms of whole parameters (LAMB, LARS) or transform whole directions
// (Adafactor, Muon). Such a rule may update some parameters element by element.
#include "tessera/parallel/parameter_norms.h"
#include "tessera/parallel/update_strategy.h"
#include "tessera/parallel/whole_tensors.h"

namespace tessera::parallel {
namespace {

class WholeParameterUpdate final : public UpdateStrategy {
 public:
  explicit WholeParameterUpdate(const UpdateContext& context)
      : context_(context), norms_(context), wholes_(context) {}

  void update(ShardStore& store,
              GradientReduction& gradients,
              const optim::UpdateScalars& scalars) override {
    norms_.prepare(store, gradients, scalars);
    wholes_.transform(store, norms_, scalars);
    update_shards(context_, store, gradients, scalars);
  }
  void add_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save) override {
    wholes_.add_pieces(out, for_save);
  }

  static std::unique_ptr<UpdateStrategy> make(const UpdateContext& context) {
    return std::make_unique<WholeParameterUpdate>(context);
  }

 private:
  UpdateContext context_;
  ParameterNorms norms_;
  WholeTensors wholes_;
};

const bool kRegistered =
    register_update(UpdateKind::WholeParameter, WholeParameterUpdate::make, WholeTensors::bytes);

}  // namespace
}  // namespace tessera::parallel
