// SPDX-License-Identifier: Apache-2.0
// tessera adapter merge|extract|list: merges an adapter into its model, extracts it, or lists what
// it adapts.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/draft.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/config/json.h"
#include "tessera/interop/export.h"
#include "tessera/interop/model_export.h"
#include "tessera/interop/peft/export.h"
#include "tessera/interop/peft/folder.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

fs::path new_folder(const std::string& action, const std::string& destination) {
  TESSERA_REQUIRE(!destination.empty(),
                  Config,
                  fmt::format("tessera adapter {}: DST is missing", action),
                  fmt::format("tessera adapter {} runs/my folder", action));
  fs::path target = fs::absolute(destination).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  TESSERA_REQUIRE(!fs::exists(fs::symlink_status(target)),
                  Config,
                  fmt::format("{} already exists", target.string()),
                  "choose another path");
  TESSERA_REQUIRE(fs::is_directory(target.parent_path()),
                  Config,
                  fmt::format("the folder {} does not exist", target.parent_path().string()),
                  "create it first");
  return target;
}

void merge_adapter(const fs::path& source, const fs::path& target, const Common& common) {
  // Throws if there is none.
  const interop::AdapterExport adapter = interop::open_adapter_export(source);
  const interop::ModelExport model = interop::open_model_export(source, std::nullopt);
  constexpr std::uint64_t kShard = 5'000'000'000;
  checkpoint::Draft draft(target);
  checkpoint::real_storage().make_folder(draft.path());
  for (const auto& [name, content] : model.files)
    files::write_atomic(draft.path() / name, content);
  interop::write_hf_weights(draft.path(), model.tensors, kShard);
  draft.publish();
  if (common.quiet || common.json) return;
  std::printf("%s: %zu tensors, %zu layers merged\n",
              target.string().c_str(),
              model.tensors.size(),
              adapter.adapter.modules.size());
}

void extract_adapter(const fs::path& source, const fs::path& target, const Common& common) {
  const interop::AdapterExport adapter = interop::open_adapter_export(source);
  checkpoint::Draft draft(target);
  checkpoint::real_storage().make_folder(draft.path());
  interop::write_peft(draft.path(), adapter.config, adapter.tensors);
  draft.publish();
  if (common.quiet || common.json) return;
  std::uint64_t bytes = 0;
  for (const auto& tensor : adapter.tensors)
    bytes += tensor.bytes();
  std::printf("%s: %zu tensors, %s\n",
              target.string().c_str(),
              adapter.tensors.size(),
              text::bytes(bytes).c_str());
}

void list_adapter(const fs::path& source, const Common& common) {
  const interop::AdapterExport opened = interop::open_adapter_export(source);
  std::vector<json::Value> rows;
  for (const models::AdapterModule& module : opened.adapter.modules) {
    const nn::LowRankPart& part = module.part;
    rows.push_back(json::Value::object({{"module", json::Value::string(part.module)},
                                        {"rank", json::Value::integer(part.rank)},
                                        {"scale", json::Value::number(part.scale)},
                                        {"inputs", json::Value::integer(module.inputs)},
                                        {"outputs", json::Value::integer(module.outputs)}}));
    if (common.json || common.quiet) continue;
    std::printf("%-48s rank %-5lld scale %-10s %lld x %lld\n",
                part.module.c_str(),
                static_cast<long long>(part.rank),
                text::number(part.scale).c_str(),
                static_cast<long long>(module.outputs),
                static_cast<long long>(module.inputs));
  }
  std::vector<json::Value> whole;
  for (const std::string& name : opened.adapter.trained) {
    whole.push_back(json::Value::string(name));
    if (!common.json && !common.quiet) std::printf("%-48s trained whole\n", name.c_str());
  }
  if (!common.json) return;
  const json::Value out =
      json::Value::object({{"type", json::Value::string(opened.adapter.options.type)},
                           {"base", json::Value::string(opened.base)},
                           {"modules", json::Value::array(std::move(rows))},
                           {"trained_whole", json::Value::array(std::move(whole))}});
  std::printf("%s\n", out.dump(2).c_str());
}

int adapter_command(const std::vector<std::string>& line) {
  std::string action, path, destination;
  Common common;
  Arguments arguments(
      "adapter",
      "merge: writes the model with the adapter merged into its weights, as a Hugging Face folder. "
      "extract: writes the adapter as a PEFT folder. list: lists the adapted layers.",
      {"tessera adapter merge runs/my merged",
       "tessera adapter extract runs/my my-lora",
       "tessera adapter list my-lora --json"});
  arguments.positional("ACTION", &action, "merge, extract or list");
  arguments.positional("PATH", &path, "A run, a checkpoint or a PEFT folder");
  arguments.positional("DST", &destination, "For merge and extract: a new folder", false);
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  if (action == "merge") {
    merge_adapter(path, new_folder(action, destination), common);
  } else if (action == "extract") {
    extract_adapter(path, new_folder(action, destination), common);
  } else {
    const std::vector<std::string> known = {"merge", "extract", "list"};
    TESSERA_REQUIRE(action == "list",
                    Config,
                    fmt::format("unknown action \"{}\"", action),
                    text::suggestion(action, known));
    list_adapter(path, common);
  }
  return kExitOk;
}

TESSERA_COMMAND("adapter", "merge, extract or list a low-rank adapter", adapter_command);

}  // namespace
}  // namespace tessera::cli
