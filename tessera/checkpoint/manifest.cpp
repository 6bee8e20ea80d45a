// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/checkpoint/safetensors_header.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "tessera checkpoint";
constexpr std::int64_t kVersion = 2, kVersionWithoutHeaders = 1;
constexpr std::uintmax_t kMaxManifestBytes = std::uintmax_t{1} << 30;
/// Limit for `config` and `extra`: a tree takes a hundred times the memory of its text.
constexpr std::size_t kMaxTreeBytes = std::size_t{16} << 20;
constexpr std::string_view kSealBegin = "\"checksum\": \"xxh3:", kSealEnd = "\"\n}\n";
constexpr std::size_t kHexDigits = 16;

std::string as_json(const std::string& text) {
  return json::Value::string(text).dump();
}

std::string seal_of(std::string_view body) {
  return files::hex64(files::xxh3(std::as_bytes(std::span(body))));
}

bool is_whole(const Shape& shape, const mesh::Piece& piece) {
  return piece.box == mesh::whole(shape);
}

std::string dump_piece(const Shape& shape, const StoredPiece& stored) {
  std::vector<std::string> sums;
  for (const std::uint64_t sum : stored.checksums)
    sums.push_back(as_json(files::hex64(sum)));
  const std::string box = is_whole(shape, stored.piece)
                              ? ""
                              : fmt::format("\"box\": [[{}], [{}]], ",
                                            fmt::join(stored.piece.box.begin, ", "),
                                            fmt::join(stored.piece.box.end, ", "));
  return fmt::format("{{\"file\": {}, \"entry\": {}, {}\"range\": [{}, {}], \"xxh3\": [{}]}}",
                     as_json(stored.file),
                     as_json(stored.entry),
                     box,
                     stored.piece.begin,
                     stored.piece.end,
                     fmt::join(sums, ", "));
}

std::string dump_tensor(const StoredTensor& tensor) {
  std::vector<std::string> pieces;
  for (const auto& piece : tensor.pieces)
    pieces.push_back(dump_piece(tensor.shape, piece));
  return fmt::format("{{\"name\": {}, \"dtype\": \"{}\", \"shape\": [{}], \"pieces\": [{}{}]}}",
                     as_json(tensor.name),
                     name(tensor.dtype),
                     fmt::join(tensor.shape, ", "),
                     pieces.empty() ? "" : "\n  ",
                     fmt::join(pieces, ",\n  "));
}

std::string dump_part(const NodePart& part) {
  return fmt::format("\"part\": {{\"node\": {}, \"nodes\": {}, \"save\": \"{}\"}},\n",
                     part.node,
                     part.nodes,
                     files::hex64(part.save));
}

/// Reads a manifest member by member; every error names the file.
class Reader {
 public:
  Reader(std::string_view text, const std::string& source) : json_(text, source) {}

  Manifest read() {
    json_.object([&](const std::string& key) { member(key); });
    json_.end();
    if (version_ == 0 || !has_tensors_) json_.fail("a manifest without its version or tensors");
    check_headers();
    return std::move(manifest_);
  }

 private:
  void member(const std::string& key) {
    Meta& meta = manifest_.meta;
    if (key == "format") {
      if (json_.string() != kFormat) json_.fail("another format than \"tessera checkpoint\"");
    } else if (key == "version") {
      version_ = json_.count();
      if (version_ < kVersionWithoutHeaders || version_ > kVersion)
        json_.fail("a version of the format that this program does not read");
    } else if (key == "step") {
      meta.step = json_.count();
    } else if (key == "samples") {
      meta.samples = json_.count();
    } else if (key == "tokens") {
      meta.tokens = json_.count();
    } else if (key == "config") {
      meta.config = tree();
    } else if (key == "extra") {
      meta.extra = tree();
    } else if (key == "part" && version_ > kVersionWithoutHeaders) {
      manifest_.part = part();
    } else if (key == "tensors") {
      has_tensors_ = true;
      json_.array([&] { manifest_.tensors.push_back(tensor()); });
    } else if (key == "headers" && version_ > kVersionWithoutHeaders) {
      has_headers_ = true;
      json_.object([&](const std::string& file) {
        check_file_name(file);
        manifest_.headers[file] = checksum();
      });
    } else if (key == "checksum") {
      json_.string();
    } else {
      json_.fail("unknown key " + JsonCursor::shown(key));
    }
  }

  json::Value tree() { return json::parse_strict(json_.raw(kMaxTreeBytes), json_.source()); }

  NodePart part() {
    constexpr std::int64_t kMostNodes = 99'999;
    NodePart out;
    std::int64_t node = -1, nodes = -1;
    bool has_save = false;
    json_.object([&](const std::string& key) {
      if (key == "node") {
        node = json_.count();
      } else if (key == "nodes") {
        nodes = json_.count();
      } else if (key == "save") {
        out.save = checksum();
        has_save = true;
      } else {
        json_.fail("unknown key " + JsonCursor::shown(key));
      }
    });
    if (!has_save || node < 0 || nodes < 2 || nodes > kMostNodes || node >= nodes)
      json_.fail("an invalid part: expected node, nodes (2 or more) and save");
    out.node = static_cast<int>(node);
    out.nodes = static_cast<int>(nodes);
    return out;
  }

  StoredTensor tensor() {
    StoredTensor out;
    bool has_dtype = false, has_shape = false, has_pieces = false;
    json_.object([&](const std::string& key) {
      if (key == "name") {
        out.name = json_.string();
        json_.within("tensor " + JsonCursor::shown(out.name));
      } else if (key == "dtype") {
        const auto dtype = dtype_from_name(json_.string());
        if (!dtype) json_.fail("unknown dtype");
        out.dtype = *dtype;
        has_dtype = true;
      } else if (key == "shape") {
        out.shape = sizes();
        has_shape = true;
      } else if (key == "pieces" && has_shape) {
        json_.array([&] { out.pieces.push_back(piece(out.shape)); });
        has_pieces = true;
      } else {
        json_.fail("unexpected key " + JsonCursor::shown(key));
      }
    });
    if (out.name.empty() || !has_dtype || !has_shape || !has_pieces) {
      json_.fail("tensor without its name, dtype, shape or pieces");
    }
    check(out);
    json_.within("");
    return out;
  }

  StoredPiece piece(const Shape& shape) {
    StoredPiece out;
    if (checked_numel(shape) < 0) json_.fail("a shape that overflows");
    out.piece.box = mesh::whole(shape);
    json_.object([&](const std::string& key) {
      if (key == "file") {
        out.file = json_.string();
      } else if (key == "entry") {
        out.entry = json_.string();
      } else if (key == "box") {
        std::vector<Shape> bounds;
        json_.array([&] {
          if (bounds.size() == 2) json_.fail("a third bound");
          bounds.push_back(sizes());
        });
        if (bounds.size() != 2) json_.fail("expected two bounds of a box");
        out.piece.box = {bounds[0], bounds[1]};
      } else if (key == "range") {
        const Shape range = sizes();
        if (range.size() != 2) json_.fail("expected the two ends of a range");
        out.piece.begin = range[0];
        out.piece.end = range[1];
      } else if (key == "xxh3") {
        json_.array([&] { out.checksums.push_back(checksum()); });
      } else {
        json_.fail("unknown key " + JsonCursor::shown(key));
      }
    });
    return out;
  }

  Shape sizes() {
    Shape out;
    json_.array([&] {
      if (out.size() == kMaxDims) json_.fail("more than 64 dims");
      out.push_back(json_.count());
    });
    return out;
  }

  std::uint64_t checksum() {
    const std::string hex = json_.string();
    std::uint64_t value = 0;
    const auto [end, failed] = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
    if (failed != std::errc() || end != hex.data() + hex.size() || hex.size() != kHexDigits) {
      json_.fail("expected 16 hexadecimal digits");
    }
    return value;
  }

  void check(const StoredTensor& tensor) {
    if (!names_.insert(tensor.name).second) json_.fail("it appears twice");
    if (checked_numel(tensor.shape) < 0) json_.fail("its shape overflows");
    for (const auto& stored : tensor.pieces) {
      if (const auto wrong = misplaced(tensor.shape, stored.piece)) json_.fail(*wrong);
      check_file_name(stored.file);
      const auto bytes =
          static_cast<std::uint64_t>(stored.piece.end - stored.piece.begin) * size_of(tensor.dtype);
      if (stored.checksums.size() != (bytes + kBlockBytes - 1) / kBlockBytes)
        json_.fail("a piece lacks checksums");
    }
  }

  void check_file_name(const std::string& file) const {
    if (!is_shard_name(file)) {
      json_.fail("file name " + JsonCursor::shown(file) +
                 " is not of the form rank-00000.safetensors");
    }
  }

  void check_headers() const {
    if (version_ == kVersionWithoutHeaders) return;
    if (!has_headers_) json_.fail("a manifest without the checksums of its files' headers");
    for (const auto& tensor : manifest_.tensors) {
      for (const auto& stored : tensor.pieces) {
        if (manifest_.headers.count(stored.file) == 0)
          json_.fail("no checksum of the header of " + JsonCursor::shown(stored.file));
      }
    }
  }

  /// Only such names are opened, so that no path leads out of the folder.
  static bool is_shard_name(std::string_view file) {
    constexpr std::string_view kBegin = "rank-", kEnd = ".safetensors";
    if (!file.starts_with(kBegin) || !file.ends_with(kEnd)) return false;
    if (file.size() < kBegin.size() + 5 + kEnd.size()) return false;
    file.remove_prefix(kBegin.size());
    file.remove_suffix(kEnd.size());
    return file.size() <= 9 &&
           std::all_of(file.begin(), file.end(), [](char c) { return c >= '0' && c <= '9'; });
  }

  JsonCursor json_;
  Manifest manifest_;
  std::int64_t version_ = 0;
  bool has_tensors_ = false, has_headers_ = false;
  std::set<std::string, std::less<>> names_;
};

void check_seal(std::string_view text, const std::string& source) {
  const std::size_t seal_bytes = kSealBegin.size() + kHexDigits + kSealEnd.size();
  const auto refuse = [&](const char* what) {
    throw Error(Error::Kind::Format, fmt::format("{}: {}", source, what));
  };
  if (text.size() < seal_bytes) refuse("it is truncated");
  const std::string_view body = text.substr(0, text.size() - seal_bytes);
  std::string_view seal = text.substr(body.size());
  if (!seal.starts_with(kSealBegin) || !seal.ends_with(kSealEnd)) {
    refuse("it is truncated or damaged: its last line is not the checksum");
  }
  if (seal.substr(kSealBegin.size(), kHexDigits) != seal_of(body)) {
    refuse("it is damaged: its bytes do not match the checksum in its last line");
  }
}

}  // namespace

std::string shard_name(int rank) {
  return fmt::format("rank-{:05}.safetensors", rank);
}
std::string part_name(int rank) {
  return fmt::format("part-{:05}.json", rank);
}

std::string dump(const Manifest& manifest) {
  const Meta& meta = manifest.meta;
  const std::string config = meta.config.dump(), extra = meta.extra.dump();
  TESSERA_REQUIRE(
      std::max(config.size(), extra.size()) < kMaxTreeBytes,
      Bug,
      fmt::format(
          "a configuration of {} and an extra part of {} bytes", config.size(), extra.size()),
      "");
  std::vector<std::string> tensors;
  for (const auto& tensor : manifest.tensors)
    tensors.push_back(dump_tensor(tensor));
  std::vector<std::string> headers;
  for (const auto& [file, sum] : manifest.headers)
    headers.push_back(fmt::format("{}: {}", as_json(file), as_json(files::hex64(sum))));
  const std::string body = fmt::format(
      "{{\n\"format\": \"{}\",\n\"version\": {},\n\"step\": {},\n\"samples\": {},\n\"tokens\": "
      "{},\n"
      "\"config\": {},\n\"extra\": {},\n{}\"tensors\": [\n{}\n],\n\"headers\": {{\n{}\n}},\n",
      kFormat,
      kVersion,
      meta.step,
      meta.samples,
      meta.tokens,
      config,
      extra,
      manifest.part ? dump_part(*manifest.part) : "",
      fmt::join(tensors, ",\n"),
      fmt::join(headers, ",\n"));
  return fmt::format("{}{}{}{}", body, kSealBegin, seal_of(body), kSealEnd);
}

Manifest read_manifest(const fs::path& path) {
  require_plain_file(path, false);
  const std::string source = path.string();
  const auto bytes = fs::file_size(path);
  TESSERA_REQUIRE(bytes <= kMaxManifestBytes,
                  Format,
                  fmt::format("{}: {} bytes are too many for a manifest", source, bytes),
                  "");
  const files::Mapped file(path);
  return parse_manifest(file.text(), source);
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  check_seal(text, source);
  try {
    return Reader(text, source).read();
  } catch (const Error& error) {
    // The tree parser mentions the configuration when it exceeds its depth limit.
    throw Error(Error::Kind::Format, error.what(), error.fix());
  }
}

void ManifestJoiner::add(Manifest part, Error::Kind kind, const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    throw Error(kind, fmt::format("{}: {}", where, what));
  };
  for (const auto& [file, sum] : part.headers) {
    if (!headers_.emplace(file, sum).second) refuse(file + " is in another part too");
  }
  for (StoredTensor& tensor : part.tensors) {
    const auto [at, fresh] = tensors_.try_emplace(tensor.name, tensor);
    if (fresh) continue;
    StoredTensor& known = at->second;
    if (known.dtype != tensor.dtype || known.shape != tensor.shape)
      refuse(fmt::format("tensor {} has another shape or dtype than in another part",
                         JsonCursor::shown(tensor.name)));
    std::move(tensor.pieces.begin(), tensor.pieces.end(), std::back_inserter(known.pieces));
  }
}

void ManifestJoiner::finish(Manifest& out) {
  out.tensors.clear();
  for (auto& [name, tensor] : tensors_)
    out.tensors.push_back(std::move(tensor));
  tensors_.clear();
  out.headers = std::exchange(headers_, {});
}

void check_cover(const Manifest& manifest,
                 Error::Kind kind,
                 const std::string& where,
                 bool parts_missing) {
  for (const auto& tensor : manifest.tensors) {
    std::vector<mesh::Piece> pieces;
    for (const auto& stored : tensor.pieces)
      pieces.push_back(stored.piece);
    if (const auto wrong = parts_missing ? repeated(pieces) : uncovered(tensor.shape, pieces)) {
      throw Error(kind,
                  fmt::format("{}: tensor {}: {}", where, JsonCursor::shown(tensor.name), *wrong));
    }
  }
}

}  // namespace tessera::checkpoint
