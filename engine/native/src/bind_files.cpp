// Python's side of files' headers.
#include <cstring>

#include "arrays.hpp"
#include "bindings.hpp"

namespace batchdeck {
namespace {

// The bytes of an object of Python, while this exists.
class Bytes {
 public:
  explicit Bytes(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE)) throw nb::python_error();
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { PyBuffer_Release(&view_); }

  const char* begin() const { return static_cast<const char*>(view_.buf); }
  uint64_t size() const { return uint64_t(view_.len); }

 private:
  Py_buffer view_;
};

constexpr uint64_t kHead = sizeof(uint64_t);

uint64_t length_at(const char* place) {
  uint64_t length;  // The file is little-endian, as all processors are that have kernels.
  std::memcpy(&length, place, kHead);
  return length;
}

// The place behind `count` strings from `at` on; 0 if they would end beyond the data.
uint64_t end_of(const Bytes& data, uint64_t at, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    if (at > data.size() || data.size() - at < kHead) return 0;
    const uint64_t length = length_at(data.begin() + at);
    at += kHead;
    if (length > data.size() - at) return 0;
    at += length;
  }
  return at;
}

nb::object join_strings(nb::handle object, uint64_t at, uint64_t count) {
  const Bytes data(object);
  const uint64_t end = end_of(data, at, count);
  if (!end) return nb::none();
  const uint64_t size = count ? end - at - kHead * count + count - 1 : 0;
  nb::object joined = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(size)));
  if (!joined.is_valid()) throw nb::python_error();
  nb::object lengths = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(kHead * count)));
  if (!lengths.is_valid()) throw nb::python_error();
  char* text = PyBytes_AS_STRING(joined.ptr());
  char* length = PyBytes_AS_STRING(lengths.ptr());
  for (uint64_t i = 0; i < count; i++, length += kHead) {
    if (i) *text++ = 0;
    const uint64_t bytes = length_at(data.begin() + at);
    std::memcpy(length, &bytes, kHead);
    std::memcpy(text, data.begin() + at + kHead, bytes);
    text += bytes;
    at += kHead + bytes;
  }
  return nb::make_tuple(joined, lengths, end);
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def("join_strings", &join_strings, nb::arg("data"), nb::arg("at"), nb::arg("count"),
        "Joins strings, each of which follows its length in 8 bytes, with zero bytes between them. "
        "Returns them, their lengths as 64-bit numbers, and the offset behind them; None if they "
        "would end beyond the data.");
}

}  // namespace batchdeck
