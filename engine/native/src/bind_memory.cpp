// Python's side of memory: huge pages, and files in place of it.
#include <malloc.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "arrays.hpp"
#include "bindings.hpp"

namespace batchdeck {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr uintptr_t kHugePage = 2 << 20;

struct Pages {
  char* begin;
  size_t size;
};

// The pages of an array, which begins with one; behind its end there is memory up to the last one's.
Pages pages_of(const Array& array) {
  if (uintptr_t(array.data()) % kPage) refuse("array", "does not begin with a page");
  return {static_cast<char*>(array.data()), (array.nbytes() + kPage - 1) / kPage * kPage};
}

void check(int error) {
  if (!error) return;
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

// Huge pages for the whole pages of an array: a plain sum read 40 GB/s from them, 26 from small
// ones (two Sapphire Rapids cores, a virtual machine).
void advise_huge(const Array& array) {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = (uintptr_t(array.data()) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (uintptr_t(array.data()) + array.nbytes()) / kPage * kPage;
  // Advice only: without it everything works, but slower.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// Returns freed memory to the system: holes between matrices in use, which the allocator would
// keep.
void trim_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// Later reads of the array are reads of a file, from an offset that is a multiple of pages. What is
// written to it stays in memory. The file must not become shorter.
void map_file(const Array& array, int file, int64_t offset) {
  const Pages pages = pages_of(array);
  const int flags = MAP_PRIVATE | MAP_FIXED;
  const void* found = mmap(pages.begin, pages.size, PROT_READ | PROT_WRITE, flags, file, offset);
  check(found == MAP_FAILED ? errno : 0);
}

int replace(const Pages& pages) {
  const size_t room = pages.size + kHugePage;
  void* found = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return errno;
  char* const whole = static_cast<char*>(found);
  // A huge page is moved as one if both places are aligned alike.
  const size_t before = (uintptr_t(pages.begin) - uintptr_t(whole)) % kHugePage;
  char* const copy = whole + before;
  madvise(copy, pages.size, MADV_HUGEPAGE);
  std::memcpy(copy, pages.begin, pages.size);
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
  if (mremap(copy, pages.size, pages.size, flags, pages.begin) == MAP_FAILED) {
    const int error = errno;
    munmap(whole, room);
    return error;
  }
  // Only what is left at both ends: another thread may already have got memory between them.
  if (before) munmap(whole, before);
  munmap(copy + pages.size, kHugePage - before);
  return 0;
}

// Copies the file under an array to huge pages, which replace it. Others may read the array at the
// same time: they find the same bytes before and after.
void unmap_file(const Array& array) {
  const Pages pages = pages_of(array);
  int error = 0;
  {
    const nb::gil_scoped_release unlocked;
    error = replace(pages);
  }
  check(error);
}

}  // namespace

void bind_memory(nb::module_& m) {
  m.def("advise_huge", &advise_huge, nb::arg("array"),
        "Asks for huge pages under an array; do so before it is written.");
  m.def("trim_heap", &trim_heap, nb::call_guard<nb::gil_scoped_release>(),
        "Gives memory that was freed back to the system.");
  m.def("map_file", &map_file, nb::arg("array"), nb::arg("file"), nb::arg("offset"),
        "Puts a file, by its descriptor, in place of an array's memory, which begins with a page.");
  m.def("unmap_file", &unmap_file, nb::arg("array"),
        "Puts huge pages in place of the file under an array, with its bytes.");
}

}  // namespace batchdeck
