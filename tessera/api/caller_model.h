// SPDX-License-Identifier: Apache-2.0
// A model whose blocks the caller computes, and the datasets from which only the caller reads:
// c_api.h as blocks, an objective and datasets of the library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/c_api.h"
#include "tessera/config/json.h"
#include "tessera/data/dataset.h"
#include "tessera/nn/block.h"
#include "tessera/tensor/param.h"

namespace tessera::api {

/// A parameter of a block, as the caller describes it.
struct CallerParam {
  std::string name;  ///< global
  Shape shape;
  Role role = Role::Matrix;
  bool tied = false;  ///< several blocks use it
  bool trainable = true;
  at::Tensor value;  ///< its first value, of the caller's shape and type
};
struct CallerBlockSpec {
  std::string name;
  std::vector<CallerParam> params;
};

/// The blocks of the caller, and what to call for them. Shared by all blocks of a model.
struct CallerModel {
  tessera_callbacks callbacks = {};
  std::vector<CallerBlockSpec> blocks;
  std::int64_t seed = 0;  ///< of the training
};

/// Reads the description of c_api.h. Throws Error{Format} for another form, and Error{Config} for a
/// model without blocks.
std::shared_ptr<CallerModel> read_caller_model(const json::Value& written,
                                               const std::vector<at::Tensor>& values);
/// The model of these blocks, the last of which is the objective.
nn::Model model_of(const std::shared_ptr<const CallerModel>& caller);
/// A dataset of `size` samples that consist of their index; `set` as in tessera_micro.
std::unique_ptr<data::Dataset> caller_dataset(std::int64_t size, int set);
/// A batch for which the blocks compute nothing and call the caller with TESSERA_GATHER.
nn::Batch gathering_batch();

/// The view of c_api.h of a tensor, whose sizes and strides it borrows.
tessera_tensor view_of(const at::Tensor& tensor);
/// Keeps the text of tessera_callback_failed() for the error that the callback's caller throws.
void note_callback_failure(std::string what);

}  // namespace tessera::api
