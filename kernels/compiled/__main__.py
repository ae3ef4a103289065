"""See the package."""

from kernels.compiled import compile_all

if __name__ == "__main__":
    compile_all()
