// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/token_cache.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/data/llmc_tokens.h"
#include "tessera/data/sources.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Part of every key; raise it when the same text would give different files.
constexpr std::string_view kCacheVersion = "tessera-tokens-1";

// Bytes that a slow disk delivers in a fraction of a second.
constexpr std::size_t kPollBytes = std::size_t{16} << 20;

void add(files::Hasher& hasher, std::string_view text, const std::function<void()>& poll = {}) {
  const std::uint64_t size = text.size();
  hasher.update(std::as_bytes(std::span(&size, 1)));
  for (; !text.empty(); text.remove_prefix(std::min(text.size(), kPollBytes))) {
    if (poll) poll();
    hasher.update(std::as_bytes(std::span(text.substr(0, kPollBytes))));
  }
}

std::string key_of(const std::vector<Source>& sources,
                   const text::Tokenizer& tokenizer,
                   const TokenizeOptions& options) {
  files::Hasher hasher;
  add(hasher, kCacheVersion);
  add(hasher, tokenizer.fingerprint());
  add(hasher, options.text_field);
  add(hasher, options.invalid_utf8);
  for (const Source& source : sources) {
    add(hasher,
        source.kind == Source::Kind::Text    ? "text"
        : source.kind == Source::Kind::Lines ? "lines"
                                             : source.format);
    if (source.range) add(hasher, fmt::format("{}:{}", source.range->begin, source.range->end));
    add(hasher, map_source(source.path)->text(), options.poll);
  }
  return files::hex64(hasher.digest());
}

/// The source files, with the attributes that change when a file is written or replaced.
class Seen {
 public:
  explicit Seen(const std::vector<Source>& sources) {
    for (const Source& source : sources) {
      struct stat status {};
      if (::stat(source.path.c_str(), &status) != 0) status = {};  // opening it reports the reason
      files_.emplace_back(source.path,
                          status.st_dev,
                          status.st_ino,
                          status.st_size,
                          status.st_mtim.tv_sec,
                          status.st_mtim.tv_nsec);
    }
  }
  /// Throws Error{Data} unless `now` is the same.
  void require_same(const Seen& now) const {
    const auto [was, is] =
        std::mismatch(files_.begin(), files_.end(), now.files_.begin(), now.files_.end());
    if (was == files_.end() && is == now.files_.end()) return;
    throw Error(Error::Kind::Data,
                fmt::format("{} was changed or replaced while it was tokenized",
                            std::get<0>(was == files_.end() ? *is : *was).string()),
                "run again once nothing writes to the data");
  }

 private:
  std::vector<std::tuple<fs::path, dev_t, ino_t, off_t, time_t, long>> files_;
};

using Poll = std::function<void()>;

std::string sum_of(const Json& about) {
  const std::string text = about.dump();
  return files::hex64(files::xxh3(std::as_bytes(std::span(text))));
}

bool writable_folder(const fs::path& folder) {
  std::error_code reason;
  fs::create_directories(folder, reason);
  return fs::is_directory(folder, reason) && ::access(folder.c_str(), W_OK | X_OK) == 0;
}

fs::path place_for(const fs::path& wanted) {
  if (writable_folder(wanted)) return wanted;
  fs::path here = fs::path(".cache") / "tokens";
  TESSERA_REQUIRE(
      writable_folder(here),
      Io,
      fmt::format("neither {} nor {} can be written", wanted.string(), fs::absolute(here).string()),
      "set TESSERA_CACHE to a folder that you may write to");
  log::warn_once(fmt::format(
      "the cache folder {} cannot be written: using {}", wanted.string(), here.string()));
  return here;
}

// about.json: the counts, the checksums of the pair, and one of all this.
std::string about_text(const TokenizeStats& stats, const fs::path& prefix, const Poll& poll) {
  const files::Mapped bin(prefix.string() + ".bin"), idx(prefix.string() + ".idx");
  Json blocks = Json::array();
  for (const std::uint64_t sum : block_sums(bin.bytes(), poll).blocks)
    blocks.push_back(files::hex64(sum));
  Json about = {{"documents", stats.documents},
                {"tokens", stats.tokens},
                {"bytes", stats.bytes},
                {"skipped_empty", stats.skipped_empty},
                {"replaced_utf8", stats.replaced_utf8},
                {"block_bytes", BlockSums::kBlockBytes},
                {"blocks", std::move(blocks)},
                {"index", files::hex64(files::xxh3(idx.bytes()))}};
  about["checksum"] = sum_of(about);
  return about.dump(2) + "\n";
}

TokenizeStats stats_in(const Json& about) {
  return {.documents = about.at("documents"),
          .tokens = about.at("tokens"),
          .bytes = about.at("bytes"),
          .skipped_empty = about.at("skipped_empty"),
          .replaced_utf8 = about.at("replaced_utf8")};
}

// Whether the entry was made by a version that stored no checksums.
bool is_unsigned(const Json& about) {
  return about.is_object() && !about.contains("checksum");
}

BlockSums sums_in(const Json& about) {
  BlockSums sums;
  for (const Json& sum : about.at("blocks"))
    sums.blocks.push_back(std::stoull(sum.get<std::string>(), nullptr, 16));
  return sums;
}

// Throws unless counts and index are the ones that were written.
OpenedTokens open_entry(const fs::path& entry, Json about) {
  const std::string sum = about.at("checksum");
  about.erase("checksum");
  const files::Mapped idx(entry / "tokens.idx");
  const bool same = sum == sum_of(about) && about.at("block_bytes") == BlockSums::kBlockBytes &&
                    about.at("index") == files::hex64(files::xxh3(idx.bytes()));
  TESSERA_REQUIRE(same, Data, entry.string() + " does not match its checksums", "");
  OpenedTokens found;
  found.stats = stats_in(about);
  found.file = TokenFile::open_verified(
      entry / "tokens",
      sums_in(about),
      fmt::format("remove the folder {} and run again: the next run tokenizes the text again",
                  entry.string()));
  TESSERA_REQUIRE(found.stats.tokens == found.file->tokens(), Data, "other counts", "");
  return found;
}

// The entry, if it is complete. Its folder was renamed into place when it was complete. Counts,
// sizes and the index are verified here, the tokens as they are read.
std::optional<OpenedTokens> look_up(const fs::path& entry) {
  std::error_code ignored;
  if (!fs::exists(entry / "about.json", ignored)) return std::nullopt;
  bool old = false;
  try {
    files::require_own_folder(entry);
    const Json about = Json::parse(files::read(entry / "about.json"));
    old = is_unsigned(about);
    OpenedTokens found = open_entry(entry, about);
    // Records the last use; in a read-only cache this is skipped.
    fs::last_write_time(entry / "about.json", fs::file_time_type::clock::now(), ignored);
    return found;
  } catch (const Error&) {
  } catch (const Json::exception&) {
  } catch (const std::logic_error&) {  // of std::stoull
  }
  log::warn(fmt::format("the cached token file {} {}: it is made again",
                        entry.string(),
                        old ? "has no checksums" : "is damaged"));
  return std::nullopt;
}

/// A temporary folder that is removed unless it is kept.
class Workplace {
 public:
  explicit Workplace(fs::path path) : path_(std::move(path)) { fs::create_directories(path_); }
  ~Workplace() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(path_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }
  void keep_as(const fs::path& name) {
    std::error_code reason;
    fs::remove_all(name, reason);
    fs::rename(path_, name, reason);
    TESSERA_REQUIRE(
        !reason,
        Io,
        fmt::format("cannot rename {} to {}: {}", path_.string(), name.string(), reason.message()),
        "");
    kept_ = true;
    files::sync(name.parent_path());
  }

 private:
  fs::path path_;
  bool kept_ = false;
};

// Removes folders of builders that were killed; under the key's lock no other process builds.
void remove_leftovers(const fs::path& entry) {
  std::error_code ignored;
  const std::string start = entry.filename().string() + ".tmp-";
  std::vector<fs::path> leftovers;
  for (const auto& found : fs::directory_iterator(entry.parent_path(), ignored)) {
    if (found.path().filename().string().rfind(start, 0) == 0) leftovers.push_back(found.path());
  }
  for (const fs::path& path : leftovers)
    fs::remove_all(path, ignored);
}

void build(const std::vector<fs::path>& sources,
           const text::Tokenizer& tokenizer,
           const TokenizeOptions& options,
           const fs::path& entry,
           const Seen& hashed) {
  remove_leftovers(entry);
  Workplace work(fmt::format("{}.tmp-{}", entry.string(), ::getpid()));
  const TokenizeStats stats = tokenize(sources, tokenizer, work.path() / "tokens", options);
  hashed.require_same(Seen(expand_sources(sources)));
  files::write_atomic(work.path() / "about.json",
                      about_text(stats, work.path() / "tokens", options.poll));
  work.keep_as(entry);
}

/// The lock of the process that builds an entry; its file is removed with it.
class BuildLock {
 public:
  BuildLock(const fs::path& entry,
            const std::vector<fs::path>& sources,
            const std::function<void()>& poll)
      : lock_(files::Lock::acquire(
            entry.string() + ".lock",
            [&](const std::string& owner) {
              log::warn(fmt::format("waiting for {}{} to be tokenized by {}; its lock is {}.lock",
                                    sources.front().string(),
                                    sources.size() > 1 ? " and more files" : "",
                                    owner,
                                    entry.string()));
            },
            poll)) {}
  ~BuildLock() { lock_->remove_file(); }
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

 private:
  std::unique_ptr<files::Lock> lock_;
};

OpenedTokens open_cached(const std::vector<fs::path>& sources,
                         const text::Tokenizer& tokenizer,
                         const TokenizeOptions& options,
                         const std::string& key,
                         const Seen& hashed) {
  const fs::path wanted = files::cache_dir() / "tokens";
  if (auto found = look_up(wanted / key)) return *found;
  const fs::path place = place_for(wanted);
  const fs::path entry = place / key;
  const BuildLock lock(entry, sources, options.poll);
  if (auto found = look_up(entry)) return *found;
  build(sources, tokenizer, options, entry, hashed);
  evict(place, {});
  auto found = look_up(entry);
  TESSERA_REQUIRE(found.has_value(),
                  Io,
                  "the token file was changed while it was made: " + entry.string(),
                  "run again");
  return *found;
}

struct Entry {
  fs::path folder;
  fs::file_time_type used;
  std::uintmax_t bytes = 0;
};

// The complete entries, the longest unused first.
std::vector<Entry> entries_in(const fs::path& folder) {
  std::vector<Entry> found;
  std::error_code ignored;
  for (const auto& at : fs::directory_iterator(folder, ignored)) {
    const fs::path about = at.path() / "about.json";
    if (at.path().has_extension() || !fs::exists(about, ignored)) continue;
    Entry entry{at.path(), fs::last_write_time(about, ignored)};
    for (const auto& file : fs::directory_iterator(at.path(), ignored)) {
      const std::uintmax_t bytes = file.file_size(ignored);
      if (!ignored) entry.bytes += bytes;
    }
    found.push_back(std::move(entry));
  }
  std::sort(
      found.begin(), found.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  return found;
}

// Renames first, because a half-removed entry must not look complete.
bool remove_entry(const fs::path& entry) {
  const auto lock = files::Lock::try_acquire(entry.string() + ".lock");
  if (lock == nullptr) return false;
  const fs::path going = fmt::format("{}.tmp-{}", entry.string(), ::getpid());
  std::error_code failed;
  fs::rename(entry, going, failed);
  if (!failed) fs::remove_all(going, failed);
  lock->remove_file();
  return !failed;
}

OpenedTokens open_pair(const fs::path& path, const std::function<void()>& poll) {
  OpenedTokens opened;
  opened.file = TokenFile::open(path);
  opened.stats.documents = opened.file->sequences();
  opened.stats.tokens = opened.file->tokens();
  fs::path prefix = path;
  if (prefix.extension() == ".bin" || prefix.extension() == ".idx") prefix.replace_extension();
  files::Hasher hasher;
  if (is_llmc_tokens(path) || is_bare_tokens(path)) {
    add(hasher, map_source(path)->text(), poll);
  } else {
    for (const char* suffix : {".idx", ".bin"})
      add(hasher, map_source(prefix.string() + suffix)->text(), poll);
  }
  opened.fingerprint = files::hex64(hasher.digest());
  return opened;
}

}  // namespace

void evict(const fs::path& folder, const CacheLimit& limit) noexcept {
  try {
    const std::vector<Entry> entries = entries_in(folder);
    const auto recently = fs::file_time_type::clock::now() - limit.unused;
    std::uintmax_t bytes = 0;
    for (const Entry& entry : entries)
      bytes += entry.bytes;
    for (const Entry& entry : entries) {
      if (bytes <= limit.bytes || entry.used >= recently) return;
      if (remove_entry(entry.folder)) bytes -= entry.bytes;
    }
  } catch (const std::exception& error) {
    log::debug(fmt::format("the cache was not tidied: {}", error.what()));
  }
}

OpenedTokens open_tokens(const std::vector<fs::path>& sources,
                         const text::Tokenizer& tokenizer,
                         const TokenizeOptions& options) {
  if (sources.size() == 1 && names_token_file(sources.front())) {
    return open_pair(sources.front(), options.poll);
  }
  const std::vector<Source> files = expand_sources(sources);
  const Seen before(files);
  const std::string key = key_of(files, tokenizer, options);
  OpenedTokens opened = open_cached(sources, tokenizer, options, key, before);
  opened.fingerprint = key;
  opened.from_text = true;
  return opened;
}

std::shared_ptr<const TokenFile> tokens_of(const std::vector<fs::path>& sources,
                                           const text::Tokenizer& tokenizer,
                                           const TokenizeOptions& options,
                                           TokenizeStats* stats) {
  const OpenedTokens opened = open_tokens(sources, tokenizer, options);
  if (!opened.from_text) opened.file->check_ids(tokenizer.size(), options.poll);
  if (stats != nullptr) *stats = opened.stats;
  return opened.file;
}

}  // namespace tessera::data
