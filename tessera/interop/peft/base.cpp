// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/peft/base.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/interop/model_export.h"
#include "tessera/models/objective.h"
#include "tessera/nn/block.h"
#include "tessera/text/small_file.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

/// The tie of a decoder's head to its token table; nullptr for other families.
const models::Tie* tie_of(const models::ModelSource& source) {
  const models::Family& family = models::families().get(source.model.family());
  const bool decoder =
      models::traits_of(family.objective).predicts == models::Predicts::NextToken &&
      !family.weight_map.ties.empty();
  return decoder ? &family.weight_map.ties.front() : nullptr;
}

/// A tensor that the adapter has as a whole; nullptr: it has none of that name.
const Weight* whole_tensor(const PeftFolder& peft,
                           const models::WeightMap& map,
                           const std::string& name) {
  for (const Weight& weight : peft.tensors) {
    if (is_base_of_peft(weight.name)) continue;
    const std::string plain = plain_peft_name(weight.name);
    if (plain == name || plain == map.without_base(name)) return &weight;
  }
  return nullptr;
}

/// True if the adapter has low-rank matrices for the module of this tensor.
bool adapts(const PeftFolder& peft, const models::WeightMap& map, const std::string& tensor) {
  const std::string begin = tensor.substr(0, tensor.rfind('.')) + ".lora_";
  return std::ranges::any_of(peft.tensors, [&](const Weight& weight) {
    const std::string plain = plain_peft_name(weight.name);
    return plain.starts_with(begin) || plain.starts_with(map.without_base(begin));
  });
}

/// Names the module of a tensor among those that are saved, unless it is.
void save_module(const std::string& tensor, models::AdapterOptions& options) {
  const std::string module = tensor.substr(0, tensor.rfind('.'));
  const bool named = std::ranges::any_of(
      options.modules_to_save, [&](const std::string& name) { return module.ends_with(name); });
  if (!named) options.modules_to_save.push_back(module);
}

bool is_saved_module(const std::string& tensor, const models::AdapterOptions& options) {
  const std::string module = tensor.substr(0, tensor.rfind('.'));
  return std::ranges::any_of(options.modules_to_save,
                             [&](const std::string& name) { return module.ends_with(name); });
}

/// True if the adapter's folder has a tokenizer of its own.
bool has_other_tokenizer(const fs::path& adapter, const fs::path& base) {
  constexpr const char* kFile = "tokenizer.json";
  std::error_code failed;
  if (!fs::is_regular_file(adapter / kFile, failed)) return false;
  if (!fs::is_regular_file(base / kFile, failed)) return true;
  return text::read_small_file(adapter / kFile) != text::read_small_file(base / kFile);
}

}  // namespace

void fit_to_adapter(const PeftFolder& peft, models::ModelSource& source) {
  const models::Tie* const tie = tie_of(source);
  if (tie == nullptr) return;
  const models::WeightMap& map = models::families().get(source.model.family()).weight_map;
  const Weight *const head = whole_tensor(peft, map, tie->alias), *const table = whole_tensor(
                                                                      peft, map, tie->of);
  if (source.hugging_face && has_other_tokenizer(peft.folder, source.folder))
    source.folder = peft.folder;
  // PEFT adapts one use of a shared table, and leaves the other as it is.
  if (adapts(peft, map, tie->alias) || adapts(peft, map, tie->of))
    source.model->tie_embeddings = false;
  if (head == nullptr && table == nullptr) return;
  const Weight& one = table != nullptr ? *table : *head;
  if (one.shape.size() == 2) source.model->vocab_size = one.shape.front();
  // A table that is saved without being named is that of the head too, as long as both are one.
  const bool named = table != nullptr && is_saved_module(tie->of, source.adapter_options);
  if (head == nullptr && !named && source.model->tie_embeddings) return;
  if (head != nullptr) save_module(tie->alias, source.adapter_options);
  if (table != nullptr) save_module(tie->of, source.adapter_options);
  source.model->tie_embeddings = false;
}

models::WeightSource base_weights_for(const models::ModelSource& base,
                                      const models::Resolved& wanted,
                                      std::uint64_t seed,
                                      std::vector<std::string>& notes) {
  const std::int64_t rows = base.model->vocab_size.value_or(wanted.vocab_size);
  const models::Tie* const tie = tie_of(base);
  const bool same = rows == wanted.vocab_size &&
                    (tie == nullptr || base.model->tie_embeddings == wanted.tied_head);
  if (same || tie == nullptr || base.adapter_options.enabled())
    return models::first_weights(base, wanted, seed, notes);
  config::Problems problems;
  const models::Resolved own = models::resolve(base.model,
                                               std::min(wanted.tokenizer_size, rows),
                                               std::nullopt,
                                               problems,
                                               {},
                                               wanted.objective);
  problems.raise();
  const models::WeightMap& map = models::families().get(base.model.family()).weight_map;
  auto infos = std::make_shared<std::map<std::string, std::shared_ptr<const ParamInfo>>>();
  std::shared_ptr<const ParamInfo> table;
  for (const auto& info : nn::parameters_of(own.model)) {
    infos->emplace(info->name, info);
    const models::Composition composition = map.compose(*info);
    if (composition.parts().front().tensor == tie->of) table = info;
  }
  TESSERA_ASSERT(table != nullptr);
  return [weights = models::first_weights(base, own, seed, notes), infos, table](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    const auto found = infos->find(info.name);
    const ParamInfo& from = found == infos->end() ? *table : *found->second;
    // Only the number of rows differs, so that elements have the same place in both.
    const std::int64_t there = std::clamp(from.numel(), begin, end);
    if (there > begin) weights(from, begin, there, out);
    std::fill(out + (there - begin), out + (end - begin), 0.0F);
  };
}

void fit_files(const models::ModelSource& source,
               std::vector<std::pair<std::string, std::string>>& files) {
  if (source.base == nullptr) return;
  const bool untied = source.model->tie_embeddings != source.base->model->tie_embeddings,
             enlarged = source.model->vocab_size != source.base->model->vocab_size;
  for (auto& [name, text] : files) {
    if (name != "config.json" || (!untied && !enlarged)) continue;
    json::Value config = json::parse_strict(text, name);
    if (untied) config["tie_word_embeddings"] = json::Value::boolean(source.model->tie_embeddings);
    if (enlarged) config["vocab_size"] = json::Value::integer(source.model->vocab_size.value());
    text = config.dump(2) + "\n";
  }
  if (source.folder == source.base->folder) return;
  for (auto& [name, text] : files_beside(source.folder)) {
    std::erase_if(files, [&, beside = name](const auto& file) { return file.first == beside; });
    files.emplace_back(name, std::move(text));
  }
}

}  // namespace tessera::interop
