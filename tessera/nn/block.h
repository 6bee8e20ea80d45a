// SPDX-License-Identifier: Apache-2.0
// The five nouns of a model: Flow (what runs between blocks), Batch, Params (what a block
// declares), Outcome, Block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/mesh/shard_spec.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

class StepContext;

/// What one block hands to the next.
struct Flow {
  std::vector<at::Tensor> diff;   ///< differentiable: gradients flow back through these
  std::vector<at::Tensor> fixed;  ///< carried along: lengths, masks
  mesh::ShardSpec spec;
};

/// A loss term: a sum over the tokens of the batch in fp64, and which of the objective's
/// denominators it is divided by. Any block may emit one; sums of what runs between layers are made
/// by nn::flow_sum().
struct Term {
  std::string name;
  at::Tensor sum;  ///< 0-d, differentiable (fp64 or fp32)
  int denominator = 0;
  double weight = 1.0;
};

struct Outcome {
  Flow flow;
  std::vector<Term> terms;
  std::map<std::string, at::Tensor> outputs;  ///< "logits", ... when the context asks for them
};

/// One micro-batch: named tensors ("input_ids" [B, T] int64, "labels" [B, T] int64 with -100 where
/// ignored, "attention_mask" [B, T] with 0 at padding, only where there is some, "document_starts"
/// [B, T] int64 with the place of each token's document's first, only where documents are kept
/// apart) and the number of each sample in the whole run. Where ranks share the tokens, T of the
/// first two, of "token_type_ids" and of "decoder_input_ids" is this rank's.
class Batch {
 public:
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] const at::Tensor& tensor(std::string_view name) const;  ///< Error{Shape} if absent
  void set(std::string name, at::Tensor value);
  [[nodiscard]] const std::map<std::string, at::Tensor, std::less<>>& tensors() const {
    return tensors_;
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(sample_ids.size()); }
  /// `count` of its samples from `first` on; shares their memory.
  [[nodiscard]] Batch samples(std::int64_t first, std::int64_t count) const;
  /// The same samples with their tensors on `device`; shares memory that lies there already.
  [[nodiscard]] Batch on(c10::Device device) const;
  std::vector<std::int64_t> sample_ids;

 private:
  std::map<std::string, at::Tensor, std::less<>> tensors_;
};

/// Where a block declares its parameters. Names get the block's prefix; tensors are attached later
/// by the engine. Error{Shape} for a size below 1, and for another number of axes than of dims.
class Params {
 public:
  struct Tags {
    bool trainable = true;
    Shape matrix_shape = {};      ///< empty: the shape
    bool without_prefix = false;  ///< the name is global already
    mesh::ShardSpec spec = {};
    std::int64_t unit = 1;  ///< elements of a cut dim that stay together: the channels of a head
    std::int64_t inner_unit = 0;    ///< as in ParamInfo
    std::optional<Role> role = {};  ///< absent: by the axes and the matrix shape, role_of()
  };
  explicit Params(std::string prefix) : prefix_(std::move(prefix)) {}
  /// A parameter of this block. The pointer lives as long as the model.
  Param* add(std::string name, Shape global, std::vector<LogicalAxis> logical_axes, Init init);
  Param* add(
      std::string name, Shape global, std::vector<LogicalAxis> logical_axes, Init init, Tags tags);
  /// A parameter that several blocks use: `global_name` without prefix, equal declarations in each
  /// home.
  Param* tied(std::string global_name,
              Shape global,
              std::vector<LogicalAxis> logical_axes,
              Init init);
  Param* tied(std::string global_name,
              Shape global,
              std::vector<LogicalAxis> logical_axes,
              Init init,
              Tags tags);
  [[nodiscard]] const std::vector<std::shared_ptr<Param>>& list() const { return list_; }

 private:
  std::string prefix_;
  std::vector<std::shared_ptr<Param>> list_;
};

/// One element of a model. Written for one device; never looks at ranks.
class Block {
 public:
  virtual ~Block() = default;
  virtual void declare(Params& params) = 0;
  virtual Outcome forward(Flow in, const Batch& batch, StepContext& context) = 0;
  /// Whether it may get a share of the tokens, parallel.context's or parallel.sequence's. Say so
  /// where layers of functional.h alone read the batch and see several tokens at a time (attention,
  /// positions, vocab_loss), whatever is between them works on every token by itself, and no term
  /// of the loss is another's than vocab_loss(). Others get all tokens, and such layouts are
  /// refused.
  [[nodiscard]] virtual bool works_by_token() const { return false; }
  /// What of it modes 2d, 2.5d and 3d of parallel.tensor cannot cut: "norms of query and key
  /// heads". Empty: nothing.
  [[nodiscard]] virtual std::string grid_obstacle() const { return {}; }
};

/// The last block: it knows what the loss is divided by before anything runs. In training its
/// outcome has a term.
class Objective : public Block {
 public:
  /// This micro-batch's share of each denominator (labels that count), as many for every batch.
  /// Pure. Counts of tokens: ranks that share a context each count their own.
  [[nodiscard]] virtual std::vector<double> denominators(const Batch& batch) const = 0;
  /// In training it runs together with its backward, for at most so many samples of `batch` at a
  /// time, so that what it makes of a whole vocabulary exists for these alone; 0: all of them. Say
  /// less than all only where the terms are sums over samples and every tensor of the flow has a
  /// row for each.
  [[nodiscard]] virtual std::int64_t samples_at_once(const Batch& /*batch*/) const { return 0; }
};

/// The parameters of a block, in the order of its declaration; names and shapes, no storage.
using ParamInfos = std::vector<std::shared_ptr<const ParamInfo>>;

struct BlockSpec {
  std::string name;  ///< "h.3": prefix of its parameters, name in reports
  std::function<std::unique_ptr<Block>()> make;
  /// What is added to the block's parameters once they are declared, such as an adapter
  /// (low_rank.h); empty: nothing.
  std::function<void(Params&)> adapt = {};
  std::shared_ptr<const ParamInfos> declared = {};  ///< once declare_all() has looked
};
/// A model is a list of blocks, the last one an Objective.
struct Model {
  std::vector<BlockSpec> blocks;
};

/// Makes the block and declares what it consists of, what adapts it included. Error{Config} for a
/// spec that makes none.
std::unique_ptr<Block> make_block(const BlockSpec& spec, Params& params);
/// What a block declares. Where nobody has looked yet one is made for it, and let go.
ParamInfos declared_by(const BlockSpec& spec);
/// Every parameter of a model once (tied parameters too), in the order of its blocks.
ParamInfos parameters_of(const Model& model);
/// Looks once at what every block declares, one block at a time: who asks later makes none. Copies
/// of the model keep it. Error{Config} for two blocks or two parameters of one name, but for tied
/// parameters, whose declarations must be equal.
void declare_all(Model& model);

}  // namespace tessera::nn
