// SPDX-License-Identifier: Apache-2.0
// tessera checkpoint verify|list|merge: verifies or lists checkpoints, or merges the files of one.
#include "tessera/checkpoint/checkpoint.h"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/draft.h"
#include "tessera/checkpoint/parts.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/checkpoint/streamed_save.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/config/json.h"
#include "tessera/interop/model_export.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

std::uint64_t bytes_of(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

std::vector<fs::path> some_at(const fs::path& path) {
  auto found = checkpoints_at(path);
  TESSERA_REQUIRE(!found.empty(),
                  Format,
                  fmt::format("{} holds no complete checkpoint", path.string()),
                  "name a run folder or one of its checkpoints/step-NNNNNNNN");
  return found;
}

/// Returns the checkpoints of a run or folder; none for a run that has written none yet.
std::vector<fs::path> listed_at(const fs::path& path) {
  std::error_code ignored;
  const bool of_run = fs::exists(path / "status.json", ignored) ||
                      path.lexically_normal().filename() == checkpoint::kFolderOfRun;
  return of_run ? checkpoints_at(path) : some_at(path);
}

/// Verifies all checkpoints, then throws the first error.
int verify(const fs::path& path, const Common& common) {
  std::optional<Error> first;
  std::vector<json::Value> rows;
  for (const fs::path& folder : some_at(path)) {
    std::string verdict = "whole";
    try {
      const checkpoint::Checkpoint opened(folder);
      opened.verify();
      opened.require_whole();
    } catch (const Error& error) {
      if (!first) first = error;
      verdict = error.what();
    }
    rows.push_back(json::Value::object({{"path", json::Value::string(folder.string())},
                                        {"whole", json::Value::boolean(verdict == "whole")}}));
    if (!common.quiet && !common.json)
      std::printf("%s  %s\n", folder.string().c_str(), verdict.c_str());
  }
  if (common.json) std::printf("%s\n", json::Value::array(rows).dump(2).c_str());
  if (first) throw *first;
  return kExitOk;
}

/// Lists all checkpoints, then throws the first error.
int list(const fs::path& path, const Common& common) {
  std::optional<Error> first;
  std::vector<json::Value> rows;
  for (const fs::path& folder : listed_at(path)) {
    checkpoint::Meta meta;
    try {
      meta = checkpoint::Checkpoint(folder).meta();
    } catch (const Error& error) {
      if (!first) first = error;
      if (!common.json) std::printf("damaged  %s\n", folder.string().c_str());
      continue;
    }
    const std::uint64_t bytes = bytes_of(folder);
    rows.push_back(
        json::Value::object({{"path", json::Value::string(folder.string())},
                             {"step", json::Value::integer(meta.step)},
                             {"samples", json::Value::integer(meta.samples)},
                             {"tokens", json::Value::integer(meta.tokens)},
                             {"bytes", json::Value::integer(static_cast<std::int64_t>(bytes))}}));
    if (common.json) continue;
    std::printf("step %-10s samples %-12s tokens %-14s %10s  %s\n",
                text::with_commas(meta.step).c_str(),
                text::with_commas(meta.samples).c_str(),
                text::with_commas(meta.tokens).c_str(),
                text::bytes(bytes).c_str(),
                folder.string().c_str());
  }
  if (common.json) std::printf("%s\n", json::Value::array(rows).dump(2).c_str());
  if (first) throw *first;
  return kExitOk;
}

bool holds_shards(const fs::path& folder) {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".safetensors")) return true;
  }
  return false;
}

/// Opens a run's newest checkpoint, or one that is divided into parts: `paths` has the folder of
/// each, first the one with the manifest, or with that of a host's part.
std::shared_ptr<const checkpoint::Checkpoint> open_parts(const std::vector<fs::path>& paths) {
  using checkpoint::is_checkpoint;
  if (paths.size() == 1 && (is_checkpoint(paths.front()) || !holds_shards(paths.front())))
    return std::make_shared<const checkpoint::Checkpoint>(some_at(paths.front()).back());
  std::vector<fs::path> parts;
  for (const fs::path& path : paths) {
    parts.push_back(is_checkpoint(path) || holds_shards(path) ? path : some_at(path).back());
    if (is_checkpoint(parts.back()) && !is_checkpoint(parts.front()))
      std::swap(parts.front(), parts.back());
  }
  TESSERA_REQUIRE(is_checkpoint(parts.front()),
                  Format,
                  fmt::format("{}: none of the parts has a manifest.json", parts.front().string()),
                  "also name the folder of rank 0");
  const std::vector<fs::path> others(parts.begin() + 1, parts.end());
  return std::make_shared<const checkpoint::Checkpoint>(
      checkpoint::open_parts(parts.front(), others));
}

/// Runs `work`; adds to missing or damaged parts the fix for merging parts.
template <class Work>
auto with_parts(Work work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::Format) throw;
    throw Error(
        error.kind(),
        error.what(),
        "name every folder that holds a part of it: tessera checkpoint merge PART PART DST; "
        "a damaged part has to be copied again");
  }
}

/// Merges the files of all ranks into one set with plain names. A failure leaves no files behind.
int merge(std::vector<fs::path> paths, const Common& common) {
  TESSERA_REQUIRE(paths.size() >= 2,
                  Config,
                  "tessera checkpoint merge: DST is missing",
                  "tessera checkpoint merge runs/my merged");
  fs::path target = fs::absolute(paths.back()).lexically_normal();
  paths.pop_back();
  if (!target.has_filename()) target = target.parent_path();
  TESSERA_REQUIRE(fs::is_directory(target.parent_path()),
                  Config,
                  fmt::format("the folder {} does not exist", target.parent_path().string()),
                  "create it first");
  TESSERA_REQUIRE(!fs::exists(fs::symlink_status(target)),
                  Config,
                  fmt::format("{} already exists", target.string()),
                  "choose another path");
  const auto opened = with_parts([&] {
    auto parts = open_parts(paths);
    parts->require_whole();
    parts->check_files();
    return parts;
  });
  checkpoint::Draft draft(target);
  checkpoint::real_storage().make_folder(draft.path());
  for (const auto& [name, content] : interop::files_beside(opened->folder()))
    files::write_atomic(draft.path() / name, content);
  with_parts([&] {
    checkpoint::write_checkpoint(draft.path(), opened->meta(), checkpoint::tensors_of(opened));
  });
  draft.publish();
  if (!common.quiet && !common.json) {
    std::printf("%s: %zu tensors of step %lld, %s\n",
                target.string().c_str(),
                opened->tensors().size(),
                static_cast<long long>(opened->meta().step),
                text::bytes(opened->bytes()).c_str());
  }
  return kExitOk;
}

int checkpoint_command(const std::vector<std::string>& line) {
  std::string action, path;
  std::vector<std::string> more;
  Common common;
  Arguments arguments(
      "checkpoint",
      "verify: reads every byte and verifies its checksum. list: lists the complete checkpoints of "
      "a run, oldest first. merge: merges the files of all ranks of a checkpoint (for a run: of "
      "its newest one) into one; its parts may be on several disks.",
      {"tessera checkpoint verify runs/my",
       "tessera checkpoint list runs/my --json",
       "tessera checkpoint merge runs/my merged",
       "tessera checkpoint merge /disk1/step-00000120 /disk2/step-00000120 merged"});
  arguments.positional("ACTION", &action, "verify, list or merge");
  arguments.positional("PATH", &path, "A run or a checkpoint");
  arguments.positional(
      "DST", &more, "For merge: further parts, and a new folder", /*required=*/false);
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  std::vector<fs::path> paths = {path};
  paths.insert(paths.end(), more.begin(), more.end());
  if (action == "merge") return merge(std::move(paths), common);
  const std::vector<std::string> known = {"verify", "list", "merge"};
  TESSERA_REQUIRE(action == "verify" || action == "list",
                  Config,
                  fmt::format("unknown action \"{}\"", action),
                  text::suggestion(action, known));
  TESSERA_REQUIRE(more.empty(),
                  Config,
                  fmt::format("tessera checkpoint {} takes one PATH", action),
                  fmt::format("tessera checkpoint {} {}", action, path));
  return action == "verify" ? verify(path, common) : list(path, common);
}

TESSERA_COMMAND("checkpoint", "verify, list or merge checkpoints", checkpoint_command);

}  // namespace
}  // namespace tessera::cli
