import time
a = 1
b = [1, 2.5, 'x']
c = dict(d=a * 2, e={'f': None})
g = 5 * 8 // 3 % 2
