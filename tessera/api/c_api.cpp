// SPDX-License-Identifier: Apache-2.0
#include "tessera/c_api.h"

#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "tessera/api/caller_model.h"
#include "tessera/api/caller_session.h"
#include "tessera/base/error.h"
#include "tessera/base/foreign_error.h"
#include "tessera/base/log.h"
#include "tessera/config/json.h"
#include "tessera/engine/launch.h"

using tessera::Error;
namespace api = tessera::api;
namespace json = tessera::json;

struct tessera_session {
  api::CallerSession session;
};

namespace {

thread_local std::string last_error = "{}";
thread_local std::string answer;

int32_t failed(const Error& error) {
  const int code = exit_code(error.kind());
  last_error = json::Value::object({{"exit_code", json::Value::integer(code)},
                                    {"what", json::Value::string(error.what())},
                                    {"fix", json::Value::string(error.fix())}})
                   .dump();
  return code;
}

/// Runs `work`; returns 0, or the exit code of its exception, which tessera_last_error() describes.
template <class Work>
int32_t guarded(Work work) {
  try {
    try {
      work();
      return 0;
    } catch (...) {
      tessera::engine::rethrow_as_error();
    }
  } catch (const Error& error) {
    return failed(error);
  } catch (const std::exception& error) {
    return failed(tessera::foreign_error(error.what()));
  }
}

void give(const json::Value& value, const char** out) {
  answer = value.dump();
  *out = answer.c_str();
}

std::vector<at::Tensor> tensors_of(void* const* values, int32_t count) {
  std::vector<at::Tensor> out;
  for (int32_t i = 0; i < count; ++i)
    out.emplace_back(
        c10::intrusive_ptr<at::TensorImpl>::reclaim_copy(static_cast<at::TensorImpl*>(values[i])));
  return out;
}

std::optional<std::int64_t> number_of(const json::Value& data, const char* key) {
  const json::Value* const found = data.find(key);
  return found == nullptr || found->is_null() ? std::nullopt : found->as_integer();
}

void send_messages_to(const tessera_callbacks& callbacks) {
  tessera::log::set_sink([callbacks](tessera::log::Level level, std::string_view message) {
    callbacks.log(callbacks.user, static_cast<int32_t>(level), std::string(message).c_str());
  });
}

}  // namespace

int32_t tessera_c_api_version(void) {
  return TESSERA_C_API_VERSION;
}

const char* tessera_last_error(void) {
  return last_error.c_str();
}

void tessera_callback_failed(const char* what) {
  api::note_callback_failure(what);
}

int32_t tessera_open(const char* config,
                     const char* name,
                     const char* model,
                     const char* data,
                     void* const* values,
                     int32_t num_values,
                     const tessera_callbacks* callbacks,
                     tessera_session** out) {
  return guarded([&] {
    send_messages_to(*callbacks);
    const json::Value described = json::parse_strict(data, "the description of the data");
    api::CallerRequest request{.config = config, .name = name};
    request.model = api::read_caller_model(
        json::parse_strict(model, "the description of the model"), tensors_of(values, num_values));
    request.model->callbacks = *callbacks;
    request.size = number_of(described, "size");
    request.validation = number_of(described, "validation");
    if (const json::Value* const changes = described.find("set")) {
      for (const json::Value& change : changes->items())
        request.changes.push_back(change.as_string());
    }
    *out = new tessera_session{api::CallerSession(request)};
  });
}

int32_t tessera_describe(tessera_session* session, const char** json) {
  return guarded([&] { give(session->session.described(), json); });
}

int32_t tessera_parameter(tessera_session* session,
                          int32_t block,
                          int32_t parameter,
                          tessera_tensor* out) {
  return guarded([&] { *out = api::view_of(session->session.parameter(block, parameter)); });
}

int32_t tessera_step(tessera_session* session, const char** json) {
  return guarded([&] { give(session->session.step(), json); });
}

int32_t tessera_evaluate(tessera_session* session, const char** json) {
  return guarded([&] { give(session->session.evaluate(), json); });
}

int32_t tessera_gather(tessera_session* session) {
  return guarded([&] { session->session.gather(); });
}

int32_t tessera_save(tessera_session* session, const char* folder, const char** json) {
  return guarded([&] {
    const std::string path = session->session.save(folder).string();
    give(json::Value::object({{"folder", json::Value::string(path)}}), json);
  });
}

int32_t tessera_load(tessera_session* session, const char* folder) {
  return guarded([&] { session->session.load(folder); });
}

int32_t tessera_all_gather(
    tessera_session* session, const void* data, int64_t size, const void** all, int64_t* sizes) {
  return guarded([&] {
    answer.clear();
    for (const std::string& part : session->session.all_gather(
             {static_cast<const char*>(data), static_cast<std::size_t>(size)})) {
      *sizes++ = static_cast<int64_t>(part.size());
      answer += part;
    }
    *all = answer.data();
  });
}

int32_t tessera_finish(tessera_session* session, int32_t* exit_code) {
  return guarded([&] { *exit_code = session->session.finish(); });
}

void tessera_close(tessera_session* session) {
  delete session;
}

int32_t tessera_end(int32_t exit_code, const char* failure) {
  int32_t code = exit_code;
  const int32_t error = guarded([&] {
    code = api::end_rank_of_process(exit_code, failure == nullptr ? "" : failure);
    tessera::log::set_sink({});
  });
  return error != 0 ? error : code;
}
