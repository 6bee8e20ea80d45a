// SPDX-License-Identifier: Apache-2.0
// nanoGPT's ckpt.pt: its matrices are nn.Linear's, so each is the transpose of Hugging Face's.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "interop/foreign_support.h"
#include "interop/gpt_files.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace gpt = test::gpt;
namespace op = test::op;

constexpr std::int64_t kInner = 4 * gpt::kWidth;

struct Options {
  std::string wrapper;
  bool biases = true, sizes = true;
};

bool is_matrix(const std::string& name) {
  return name.starts_with("h.") && name.ends_with(".weight") &&
         name.find(".ln_") == std::string::npos;
}

class NanoGpt : public test::ForeignCheckpoints {
 protected:
  fs::path write(const gpt::Model& model, const Options& options) {
    gpt::File file;
    gpt::Members tensors;
    for (const auto& [name, tensor] : model) {
      if (!options.biases && name.ends_with(".bias")) continue;
      const std::string own = name == "lm_head.weight" ? name : "transformer." + name;
      const bool head = name == "lm_head.weight";
      const gpt::Tensor stored = is_matrix(name)
                                     ? gpt::turned(tensor, 0, tensor.shape[1], 0, tensor.shape[0])
                                 : head ? model.at("wte.weight")
                                        : tensor;
      tensors.emplace_back(options.wrapper + own, file.tensor(stored));
    }
    tensors.emplace_back(options.wrapper + "transformer.h.0.attn.bias",
                         file.tensor({{1, 1, 2, 2}, {1, 0, 1, 1}}));
    gpt::Members sizes = {{"n_layer", op::integer(gpt::kLayers)},
                          {"n_head", op::integer(gpt::kHeads)},
                          {"n_embd", op::integer(gpt::kWidth)},
                          {"block_size", op::integer(gpt::kPositions)},
                          {"vocab_size", op::integer(gpt::kVocab)},
                          {"bias", options.biases ? op::kTrue : op::kFalse}};
    gpt::Members members = {{"model", op::dict(tensors)}, {"iter_num", op::integer(10)}};
    if (options.sizes) members.emplace_back("model_args", op::dict(sizes));
    file.write(path("out/ckpt.pt"), members);
    return path("out/ckpt.pt");
  }
};

TEST_F(NanoGpt, HasHuggingFacesNamesAndLayout) {
  const gpt::Model model = gpt::model_of(0, kInner);
  for (const Options& options : {Options{},
                                 Options{"_orig_mod."},
                                 Options{"module._orig_mod."},
                                 Options{"", /*biases=*/false}}) {
    SCOPED_TRACE(options.wrapper + (options.biases ? "" : " without biases"));
    const fs::path file = write(model, options);

    const Foreign read = open_foreign(file.parent_path()).value();

    std::map<std::string, checkpoint::StreamedTensor> found;
    for (const checkpoint::StreamedTensor& tensor : read.weights)
      found.emplace(tensor.name, tensor);
    for (const auto& [name, tensor] : model) {
      const bool head = name == "lm_head.weight";
      const checkpoint::StreamedTensor& got = found.at(head ? name : "transformer." + name);
      const bool absent = !options.biases && name.ends_with(".bias");
      EXPECT_EQ(got.shape, tensor.shape) << name;
      EXPECT_EQ(test::values_of(got),
                absent ? std::vector<float>(tensor.values.size())
                : head ? model.at("wte.weight").values
                       : tensor.values)
          << name;
    }
    EXPECT_EQ(found.size(), model.size());
    EXPECT_EQ(read.model_config.find("n_layer")->as_integer(), gpt::kLayers);
    EXPECT_EQ(read.model_config.find("n_positions")->as_integer(), gpt::kPositions);
    EXPECT_EQ(read.model_config.find("activation_function")->as_string(), "gelu");
  }
}

TEST_F(NanoGpt, IsDescribedByAConfigJsonNextToIt) {
  const fs::path file = write(gpt::model_of(0, kInner), {});
  files::write_atomic(file.parent_path() / "config.json", R"({"model_type": "gpt2"})");

  EXPECT_TRUE(open_foreign(file).value().model_config.is_null());
}

TEST_F(NanoGpt, IsAnotherProgramsFileWithoutItsSizes) {
  const fs::path file =
      write(gpt::model_of(0, kInner), {.wrapper = "", .biases = true, .sizes = false});

  EXPECT_FALSE(is_foreign(file));
  files::write_atomic(path("ckpt.pt"), "no torch file");
  EXPECT_FALSE(is_foreign(path("ckpt.pt")));
}

TEST_F(NanoGpt, WithMatricesOfOtherShapesIsRefused) {
  gpt::Model model = gpt::model_of(0, kInner);
  model.erase("h.1.mlp.c_fc.weight");
  refused(write(model, {}), "has no tensor \"transformer.h.1.mlp.c_fc.weight\"");
  model = gpt::model_of(0, kInner);
  model["extra.weight"] = {{1}, {1}};
  refused(write(model, {}), "extra.weight");
}

}  // namespace
}  // namespace tessera::interop
